//! The table of kernels, and which set this CPU runs.

use crate::error::{Error, Result};
use crate::kernels::fixed::{Output, Shape};
use crate::kernels::layout::{ActivationGroup, Rows, Tiles, TILE};
use crate::kernels::scalar;
use crate::kernels::softmax::{Softmax, SoftmaxState};
#[cfg(target_arch = "x86_64")]
use crate::kernels::x86::{amx, avx2, avx512, avxvnni};
#[cfg(doc)]
use crate::kernels::{softmax, vector};

/// See [`scalar::fixed_matmul`].
type FixedMatmul = unsafe fn(Shape<'_>, &[i16], &[i16], Output<'_>, &[i16], &mut [f32]);

/// See [`softmax::drop_low_rows`].
type DropLowRows = unsafe fn(&mut Vec<usize>, &[f32], &[f32], &[f32]);

/// See [`softmax::merge`].
type Merge = unsafe fn(&mut [SoftmaxState], &mut [f32], &[SoftmaxState], &[f32]);

/// One instruction set's kernels. The functions are documented in [`scalar`], [`softmax`] and [`vector`].
#[derive(Clone, Copy)]
pub struct Kernels {
    name: &'static str,
    matmul: unsafe fn(&Tiles<'_>, &Rows<'_>, &mut [[f32; TILE]]),
    fixed_matmul: FixedMatmul,
    to_fixed: unsafe fn(&[f32], f32, &mut [i16]) -> f32,
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    rope: unsafe fn(&mut [f32], &[f32], &[f32]),
    swiglu: unsafe fn(&mut [f32], &[f32]),
    geglu: unsafe fn(&mut [f32], &[f32]),
    quantize: unsafe fn([&[f32; TILE]; 2], &mut ActivationGroup),
    softmax_rows: unsafe fn(Softmax<'_>),
    screen: unsafe fn(&[f32; TILE], &[f32; TILE], f32, &mut f32) -> bool,
    drop_low_rows: DropLowRows,
    cap_rows: unsafe fn(&[usize], &mut [f32], f32, &[f32]),
    cap_values: unsafe fn(&mut [f32], f32),
    scale: unsafe fn(&mut [f32], f32),
    merge: Merge,
}

/// A table with the functions of one module.
macro_rules! table {
    ($name:literal, $module:ident) => {
        Kernels {
            name: $name,
            matmul: $module::matmul,
            fixed_matmul: $module::fixed_matmul,
            to_fixed: $module::to_fixed,
            rms_norm: $module::rms_norm,
            rope: $module::rope,
            swiglu: $module::swiglu,
            geglu: $module::geglu,
            quantize: $module::quantize,
            softmax_rows: $module::softmax_rows,
            screen: $module::screen,
            drop_low_rows: $module::drop_low_rows,
            cap_rows: $module::cap_rows,
            cap_values: $module::cap_values,
            scale: $module::scale,
            merge: $module::merge,
        }
    };
}

/// Safe methods that call through the table.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $($(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name(&self, $($arg: $ty),*) $(-> $out)? {
            // SAFETY: the constructors checked that this CPU has the features the function was compiled for.
            unsafe { (self.$name)($($arg),*) }
        })*
    };
}

impl Kernels {
    /// Plain Rust for any CPU.
    pub fn scalar() -> Self {
        table!("scalar", scalar)
    }

    /// AVX2, FMA and F16C, if this CPU has them.
    #[cfg(target_arch = "x86_64")]
    pub fn avx2() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(table!("avx2", avx2))
    }

    /// AVX2 and AVX-VNNI, if this CPU has them.
    #[cfg(target_arch = "x86_64")]
    pub fn avxvnni() -> Option<Self> {
        let has = Self::avx2().is_some() && is_x86_feature_detected!("avxvnni");
        has.then_some(table!("avxvnni", avxvnni))
    }

    /// AVX-512 with VNNI, if this CPU has it.
    #[cfg(target_arch = "x86_64")]
    pub fn avx512() -> Option<Self> {
        let has = Self::avx2().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(table!("avx512-vnni", avx512))
    }

    /// AMX for products of many rows and AVX-512 for all else, if this CPU has them and the system allows it.
    #[cfg(target_arch = "x86_64")]
    pub fn amx() -> Option<Self> {
        (Self::avx512().is_some() && amx::available()).then_some(table!("amx", amx))
    }

    /// Every set this CPU can run, best first.
    pub fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let simd = [Self::amx(), Self::avx512(), Self::avxvnni(), Self::avx2()];
        #[cfg(not(target_arch = "x86_64"))]
        let simd: [Option<Self>; 0] = [];
        simd.into_iter().flatten().chain([Self::scalar()]).collect()
    }

    /// The best set, or the one that the environment variable `SPECRS_KERNELS` asks for.
    ///
    /// # Errors
    /// [`Error::Argument`] if that one is unknown or this CPU cannot run it.
    pub fn detect() -> Result<Self> {
        match std::env::var("SPECRS_KERNELS") {
            Ok(name) => Self::by_name(&name),
            Err(_) => Ok(Self::available()[0]),
        }
    }

    /// The set called `scalar`, `avx2`, `avxvnni`, `avx512` or `amx`.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is unknown or this CPU cannot run it.
    pub fn by_name(name: &str) -> Result<Self> {
        let available = Self::available();
        if let Some(kernels) = available.iter().find(|kernels| kernels.short_name() == name) {
            return Ok(*kernels);
        }
        let names: Vec<_> = available.iter().map(Self::short_name).collect();
        let fault = match ["avx2", "avxvnni", "avx512", "amx"].contains(&name) {
            true => "not available on this CPU",
            false => "unknown",
        };
        Err(Error::Argument(format!("SPECRS_KERNELS={name} is {fault}; available: {}", names.join(", "))))
    }

    fn short_name(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// The name shown to users, such as `avx512-vnni`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    methods! {
        /// See [`scalar::matmul`].
        matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]);
        /// See [`scalar::fixed_matmul`].
        fixed_matmul(shape: Shape<'_>, a: &[i16], b: &[i16], output: Output<'_>, later: &[i16], c: &mut [f32]);
        /// See [`vector::to_fixed`].
        to_fixed(values: &[f32], largest: f32, out: &mut [i16]) -> f32;
        /// See [`vector::rms_norm`].
        rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]);
        /// See [`vector::rope`].
        rope(head: &mut [f32], cos: &[f32], sin: &[f32]);
        /// See [`vector::swiglu`].
        swiglu(gate: &mut [f32], up: &[f32]);
        /// See [`vector::geglu`].
        geglu(gate: &mut [f32], up: &[f32]);
        /// See [`vector::quantize`].
        quantize(halves: [&[f32; TILE]; 2], out: &mut ActivationGroup);
        /// See [`softmax::softmax_rows`].
        softmax_rows(task: Softmax<'_>);
        /// See [`vector::screen`].
        screen(values: &[f32; TILE], norms: &[f32; TILE], error: f32, low: &mut f32) -> bool;
        /// See [`softmax::drop_low_rows`].
        drop_low_rows(rows: &mut Vec<usize>, scores: &[f32], biases: &[f32], least: &[f32]);
        /// See [`softmax::cap_rows`].
        cap_rows(rows: &[usize], scores: &mut [f32], cap: f32, biases: &[f32]);
        /// See [`vector::cap_values`].
        cap_values(x: &mut [f32], cap: f32);
        /// See [`vector::scale`].
        scale(x: &mut [f32], factor: f32);
        /// See [`softmax::merge`].
        merge(states: &mut [SoftmaxState], sums: &mut [f32], others: &[SoftmaxState], other_sums: &[f32]);
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
