//! How large the rows of a quantised matrix are.

use crate::kernels::layout::{with_layout, Layout, Tile, GROUP, TILE};
use crate::kernels::scalar::{lane, row_weights, unpack_one};
use crate::weights::matrix::Matrix;
use crate::workers::shared::Shared;
use crate::workers::threads;
use std::sync::Arc;

/// For every row, 16 to an element: a number whose product with the norm of activations no kernel's dot product with
/// them exceeds. `None` if `poll` asked to stop.
pub fn norms(matrix: &Arc<Matrix>, threads: usize, poll: &mut dyn FnMut() -> bool) -> Option<Vec<[f32; TILE]>> {
    let count = matrix.tile_count();
    let norms = Arc::new(Shared::zeroed(count * TILE));
    let (matrix, out) = (matrix.clone(), norms.clone());
    let program = move |worker: &mut threads::Worker<'_>| {
        while let Some(tiles) = worker.take(count, 1) {
            for (i, tile) in tiles.clone().zip(matrix.tiles(tiles).iter()) {
                out.write(i * TILE..(i + 1) * TILE).copy_from_slice(&with_layout!(tile.dtype, of_tile::<_>(&tile)));
            }
        }
    };
    let mut stopped = false;
    threads::run(threads, Arc::new(program), &mut || {
        stopped |= poll();
        stopped
    })?;
    let norms = Arc::into_inner(norms).expect("workers drop the program before a run ends").into_vec();
    (!stopped).then(|| norms.as_chunks().0.to_vec())
}

/// The exact product is at most the norm of the weights times that of the activations (Cauchy and Schwarz). A kernel
/// rounds every product of a scale or minimum once, which adds at most a unit in the last place of each: of terms whose
/// norm is that of `|scale * quant| + |minimum|`.
fn of_tile<L: Layout>(tile: &Tile<'_>) -> [f32; TILE] {
    let offset = L::OFFSET_BITS.map_or(0, |bits| 1 << bits);
    let roundings = (8 * tile.groups + 8) as f64;
    std::array::from_fn(|r| {
        let (mut exact, mut terms) = (0.0, 0.0);
        for g in 0..tile.groups {
            let group = &tile.quants[g * 64 * L::BITS..];
            for first in (0..GROUP).step_by(16) {
                let (scale, minimum) = row_weights::<L>(tile.scales, g, first, r);
                for c in first..first + 16 {
                    let quant = i32::from(unpack_one::<L>(group, lane(r, c))) - offset;
                    let part = f64::from(scale) * f64::from(quant);
                    exact += (part + f64::from(minimum)).powi(2);
                    terms += (part.abs() + f64::from(minimum).abs()).powi(2);
                }
            }
        }
        (1.001 * (exact.sqrt() + roundings * f64::from(f32::EPSILON) * terms.sqrt())) as f32
    })
}
