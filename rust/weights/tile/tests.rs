//! Packing against its specification, byte for byte.

use super::{pack_tile, reference};
use crate::gguf::types::GgmlType;
use crate::kernels::layout::{groups, quant_bytes, scale_bytes, TILE};

/// Bytes without a pattern: every block has all kinds of quants, scales (not-a-numbers too) and factors.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

type Pack = fn(GgmlType, &[&[u8]], &mut [u8], &mut [u8]);

/// Quants and scales that `pack` makes of `rows` rows of `columns` weights.
fn packed(pack: Pack, dtype: GgmlType, rows: usize, columns: usize) -> [Vec<u8>; 2] {
    let row_bytes = columns / dtype.block_len() * dtype.block_bytes();
    let file = bytes(rows * row_bytes, (rows * 1000 + columns) as u64);
    let rows: Vec<&[u8]> = file.chunks(row_bytes).collect();
    let groups = groups(columns);
    let mut out = [vec![0; groups * quant_bytes(dtype)], vec![0; scale_bytes(dtype, groups)]];
    let [quants, scales] = &mut out;
    pack(dtype, &rows, quants, scales);
    out
}

#[test]
fn packs_what_the_specification_packs() {
    for dtype in GgmlType::ALL {
        let columns: Vec<usize> = match dtype.block_len() {
            // Floats fill no whole group, or not even a whole chunk of columns.
            1 => vec![1, 7, 8, 31, 32, 40, 100, 576],
            block => [1, 2, 3, 5].map(|blocks| blocks * block).to_vec(),
        };
        for columns in columns {
            for rows in [1, 2, 3, 4, 5, 11, 15, TILE] {
                let [quants, scales] = packed(pack_tile, dtype, rows, columns);
                let [expected, expected_scales] = packed(reference::pack_tile, dtype, rows, columns);
                let what = format!("{} of {rows} rows and {columns} columns", dtype.name());
                assert!(quants == expected, "quants of {what}");
                assert!(scales == expected_scales, "scales of {what}");
                assert!(expected.iter().any(|&byte| byte != 0), "no quants in {what}");
            }
        }
    }
}
