//! What becomes of a logit once its parts are added up: some families divide all of them, or cap them.
//!
//! Both keep the order of logits but can make two of them equal. So the most likely token is looked for among finished
//! logits, and a candidate may be left out only if its logit is lower once it is finished.

use crate::arch::config::Config;
use crate::kernels::table::Kernels;

/// What becomes of a logit.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    pub(super) kernels: &'a Kernels,
    divisor: f32,
    cap: Option<f32>,
}

impl<'a> Finish<'a> {
    pub(super) fn new(config: &Config, kernels: &'a Kernels) -> Self {
        Self { kernels, divisor: config.logit_divisor, cap: config.logit_cap }
    }

    /// Finishes some logits.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        if self.divisor != 1.0 {
            logits.iter_mut().for_each(|logit| *logit /= self.divisor);
        }
        if let Some(cap) = self.cap {
            self.kernels.cap_values(logits, cap);
        }
    }

    /// A number such that every lower logit is also lower than `low` once both are finished.
    pub(super) fn floor(&self, low: f32) -> f32 {
        if self.divisor == 1.0 && self.cap.is_none() || !low.is_finite() {
            return low;
        }
        let finished = |value: f32| {
            let mut value = [value];
            self.apply(&mut value);
            value[0]
        };
        // More than finishing rounds off, so that it need not keep the order to the last bit.
        let slack = 1e-5 * self.cap.unwrap_or_else(|| finished(low).abs());
        let lower = |value: f32| finished(value) < finished(low) - slack;
        let mut step = (low.abs() * f32::EPSILON).max(f32::MIN_POSITIVE);
        while low - step > f32::MIN && !lower(low - step) {
            step *= 2.0;
        }
        low - step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_floor_is_lower_when_finished() {
        let kernels = Kernels::scalar();
        for (divisor, cap) in [(1.0, Some(5.0)), (8.0, None), (0.3, Some(30.0))] {
            let finish = Finish { kernels: &kernels, divisor, cap };
            for low in [-1e6, -40.0, -3.0, -1e-30, 0.0, 0.7, 4.9, 29.0, 300.0, 1e30] {
                let floor = finish.floor(low);
                assert!(floor <= low, "{floor} {low}");
                if low.abs() <= 1.0 {
                    assert!(low - floor <= 1e-3, "{floor} leaves out less than it could below {low}");
                }
                let mut values = [low, floor.next_down(), floor - 0.1, floor.min(-1e7) * 2.0];
                finish.apply(&mut values);
                let [low, below @ ..] = values;
                assert!(floor == f32::NEG_INFINITY || below.iter().all(|&value| value < low), "{low} {below:?}");
            }
        }
    }

    #[test]
    fn without_anything_to_finish_the_floor_is_the_logit() {
        let kernels = Kernels::scalar();
        let finish = Finish { kernels: &kernels, divisor: 1.0, cap: None };
        assert_eq!(finish.floor(3.5), 3.5);
        assert_eq!(finish.floor(f32::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
