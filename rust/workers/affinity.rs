//! Which CPUs the process may use, and keeping a thread on one of them.

pub use system::{allowed, Pinned};

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
    use std::collections::HashSet;

    /// The CPUs this process may use, one of each physical core first, and the number of physical cores.
    pub fn allowed() -> (Vec<usize>, usize) {
        let Ok(set) = sched_getaffinity(Some(rustix::process::getpid())) else { return (vec![0], 1) };
        let mut seen = HashSet::new();
        let (mut first, second): (Vec<_>, Vec<_>) =
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).partition(|&cpu| seen.insert(core_of(cpu)));
        let physical = first.len();
        first.extend(second);
        (first, physical)
    }

    /// What identifies the physical core of `cpu`; CPUs the system says nothing about count as cores of their own.
    fn core_of(cpu: usize) -> (String, String) {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).unwrap_or_default()
        };
        match read("core_id") {
            id if id.is_empty() => (cpu.to_string(), String::new()),
            id => (id, read("physical_package_id")),
        }
    }

    /// Keeps the calling thread on one CPU until dropped.
    pub struct Pinned {
        before: Option<CpuSet>,
    }

    impl Pinned {
        pub fn to(cpu: usize) -> Self {
            let before = sched_getaffinity(None).ok().filter(|set| set.is_set(cpu));
            if before.is_some() {
                let mut only = CpuSet::new();
                only.set(cpu);
                // A refusal only costs speed.
                let _ = sched_setaffinity(None, &only);
            }
            Self { before }
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                let _ = sched_setaffinity(None, before);
            }
        }
    }
}

/// Systems without an affinity interface schedule the threads themselves.
#[cfg(not(target_os = "linux"))]
mod system {
    pub fn allowed() -> (Vec<usize>, usize) {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        ((0..cpus).collect(), cpus)
    }

    pub struct Pinned;

    impl Pinned {
        pub fn to(_cpu: usize) -> Self {
            Self
        }
    }
}
