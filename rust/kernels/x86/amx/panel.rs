//! Many rows: groups of a tile are unpacked together and then used by every block of rows.

use super::unit::{MatrixUnit, Products, Quants};
use super::{signed_quants, ROWS_AT_ONCE};
use crate::kernels::layout::*;
use crate::kernels::x86::avx512::{self, GroupWeights, ScaleReader};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Most groups that are unpacked together: 12 KiB of quants, which stay in the first-level cache.
const PANEL: usize = 24;

/// As [`super::matmul`] for quantised weights.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn matmul_panels<L: Layout>(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    let count = rows.count;
    let whole = count / ROWS_AT_ONCE * ROWS_AT_ONCE;
    let unit = MatrixUnit::configured(L::SCALE_COLUMNS, count - whole);
    let mut panel = Panel::new();
    // Panels of one size, since a short one spends its time waiting for the first product.
    let size = tiles.groups.div_ceil(tiles.groups.div_ceil(PANEL));
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(count)) {
        out.fill([0.0; TILE]);
        let mut scales = ScaleReader::<L>::new(tile.scales);
        for first in (0..tile.groups).step_by(size) {
            panel.unpack::<L>(&tile, &mut scales, first, size.min(tile.groups - first));
            let (blocks, tail) = out.split_at_mut(whole);
            match (L::MINIMA, L::SCALE_COLUMNS) {
                (false, GROUP) => panel.multiply::<false, 1>(&unit, rows, first, blocks, tail),
                (true, GROUP) => panel.multiply::<true, 1>(&unit, rows, first, blocks, tail),
                (false, _) => panel.multiply::<false, 2>(&unit, rows, first, blocks, tail),
                (true, _) => panel.multiply::<true, 2>(&unit, rows, first, blocks, tail),
            }
        }
    }
}

/// Some groups of a tile, unpacked.
struct Panel {
    count: usize,
    quants: [MaybeUninit<Quants>; PANEL],
    weights: [MaybeUninit<GroupWeights>; PANEL],
    products: [Products; 2],
}

impl Panel {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn new() -> Self {
        Self {
            count: 0,
            quants: [MaybeUninit::uninit(); PANEL],
            weights: [MaybeUninit::uninit(); PANEL],
            products: [Products::zero(), Products::zero()],
        }
    }

    /// Takes up `count` groups of `tile` from `first` on; `scales` stands there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn unpack<L: Layout>(&mut self, tile: &Tile<'_>, scales: &mut ScaleReader<'_, L>, first: usize, count: usize) {
        self.count = count;
        for i in 0..self.count {
            let g = first + i;
            self.quants[i].write(signed_quants::<L>(tile, g));
            self.weights[i].write(scales.next(g));
        }
    }

    /// Adds the panel's part to the dot products of whole blocks of rows and of those after them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn multiply<const MINIMA: bool, const PARTS: usize>(
        &mut self,
        unit: &MatrixUnit,
        rows: &Rows<'_>,
        first: usize,
        blocks: &mut [[f32; TILE]],
        tail: &mut [[f32; TILE]],
    ) {
        self.multiply_blocks::<MINIMA, PARTS, ROWS_AT_ONCE>(unit, rows, 0, first, blocks);
        match tail.len() {
            0 => {}
            1 => self.multiply_blocks::<MINIMA, PARTS, 1>(unit, rows, blocks.len(), first, tail),
            2 => self.multiply_blocks::<MINIMA, PARTS, 2>(unit, rows, blocks.len(), first, tail),
            3 => self.multiply_blocks::<MINIMA, PARTS, 3>(unit, rows, blocks.len(), first, tail),
            4 => self.multiply_blocks::<MINIMA, PARTS, 4>(unit, rows, blocks.len(), first, tail),
            5 => self.multiply_blocks::<MINIMA, PARTS, 5>(unit, rows, blocks.len(), first, tail),
            6 => self.multiply_blocks::<MINIMA, PARTS, 6>(unit, rows, blocks.len(), first, tail),
            7 => self.multiply_blocks::<MINIMA, PARTS, 7>(unit, rows, blocks.len(), first, tail),
            8 => self.multiply_blocks::<MINIMA, PARTS, 8>(unit, rows, blocks.len(), first, tail),
            9 => self.multiply_blocks::<MINIMA, PARTS, 9>(unit, rows, blocks.len(), first, tail),
            10 => self.multiply_blocks::<MINIMA, PARTS, 10>(unit, rows, blocks.len(), first, tail),
            11 => self.multiply_blocks::<MINIMA, PARTS, 11>(unit, rows, blocks.len(), first, tail),
            12 => self.multiply_blocks::<MINIMA, PARTS, 12>(unit, rows, blocks.len(), first, tail),
            13 => self.multiply_blocks::<MINIMA, PARTS, 13>(unit, rows, blocks.len(), first, tail),
            14 => self.multiply_blocks::<MINIMA, PARTS, 14>(unit, rows, blocks.len(), first, tail),
            15 => self.multiply_blocks::<MINIMA, PARTS, 15>(unit, rows, blocks.len(), first, tail),
            count => unreachable!("fewer than 16 rows are left, not {count}"),
        }
    }

    /// Blocks of `M` rows from row `start_row` on; the sums of a block stay in registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn multiply_blocks<const MINIMA: bool, const PARTS: usize, const M: usize>(
        &mut self,
        unit: &MatrixUnit,
        rows: &Rows<'_>,
        start_row: usize,
        first: usize,
        out: &mut [[f32; TILE]],
    ) {
        assert!(rows.interleaved == ROWS_AT_ONCE && start_row.is_multiple_of(ROWS_AT_ONCE));
        let (blocks, _) = out.as_chunks_mut::<M>();
        let count = blocks.len();
        let (groups, _) = rows.quantised.as_chunks::<ROWS_AT_ONCE>();
        // The panel's groups of a block of rows.
        let of_block = |block: usize| &groups[(start_row / ROWS_AT_ONCE + block) * rows.groups + first..][..self.count];
        let start = |group: &[ActivationGroup; ROWS_AT_ONCE], i: usize, products: &mut Products| {
            // SAFETY: `unpack` wrote the first `count` groups.
            unit.multiply::<PARTS, M>(group, unsafe { self.quants[i].assume_init_ref() }, products);
        };
        let [mut products, mut next_products] = self.products.each_mut();
        if count > 0 {
            start(&of_block(0)[0], 0, products);
        }
        for (block, out) in blocks.iter_mut().enumerate() {
            let own = of_block(block);
            let next_block = if block + 1 < count { of_block(block + 1).first() } else { None };
            let mut acc: [__m512; M] = std::array::from_fn(|m| avx512::load(&out[m]));
            for (i, group) in own.iter().enumerate() {
                match own.get(i + 1) {
                    Some(next) => start(next, i + 1, next_products),
                    None => next_block.into_iter().for_each(|next| start(next, 0, next_products)),
                }
                // SAFETY: as above.
                let weights = unsafe { self.weights[i].assume_init_ref() };
                products.add_to::<MINIMA, PARTS, M>(weights, group, &mut acc);
                std::mem::swap(&mut products, &mut next_products);
            }
            for (out, acc) in out.iter_mut().zip(acc) {
                avx512::store(out, acc);
            }
        }
    }
}
