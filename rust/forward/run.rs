//! The program of a pass: its phases in order, with the barriers between them.

use crate::forward::plan::{Local, Pass};
use crate::workers::threads::Worker;
use std::sync::atomic::Ordering;

impl Pass {
    /// The program.
    pub fn run(&self, worker: &mut Worker<'_>) {
        let mut local = Local::default();
        self.embed(worker);
        for (index, layer) in self.decoder.weights.layers.iter().enumerate() {
            if worker.poll() {
                self.stopped.store(true, Ordering::Relaxed);
            }
            self.norm(worker, &layer.attn_norm, &mut local);
            worker.barrier();
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            self.project(worker, layer, &mut local);
            worker.barrier();
            self.store(worker, index, &mut local);
            worker.barrier();
            self.attend(worker, index, &mut local);
            worker.barrier();
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            if !self.decoder.heads_are_groups() {
                self.quantize_attended(worker);
                worker.barrier();
            }
            self.add_product(worker, &layer.attn_output, &self.buffers.attended, &mut local);
            worker.barrier();
            self.norm(worker, &layer.ffn_norm, &mut local);
            worker.barrier();
            self.activate(worker, layer, &mut local);
            worker.barrier();
            self.add_product(worker, &layer.ffn_down, &self.buffers.hidden, &mut local);
            worker.barrier();
        }
        self.output_norm(worker, &mut local);
        worker.barrier();
        self.output_product(worker, &mut local);
        if self.chosen > 0 {
            worker.barrier();
            self.choose(worker, &mut local.results);
        }
    }
}
