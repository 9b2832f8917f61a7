use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wasmtime::ResourceLimiter;

use super::engine::TABLE_ELEMENTS_MAX;

/// What one call of a plugin may use. The manifest's `[limits]`, within the operator's ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All linear memories together. Bytes; default 64 MiB.
    pub memory: u64,
    /// Time spent computing; waiting costs nothing. Default 1 s.
    pub cpu: Duration,
    /// The whole call, waiting included. Default 15 s.
    pub deadline: Duration,
    /// Outgoing requests of one call, TCP connections and their look-ups among them. Default 32.
    pub requests: u32,
    /// Outgoing requests under way at once. Default 4.
    pub requests_at_once: u32,
    /// Bytes of all request bodies. Default 8 MiB.
    pub upload: u64,
    /// Bytes of all response bodies. Default 8 MiB.
    pub download: u64,
    /// Bytes of stdout, stderr and log together. Default 64 KiB.
    pub log_bytes: u64,
    /// Lines of stdout, stderr and log together. Default 200.
    pub log_lines: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory: 64 << 20,
            cpu: Duration::from_secs(1),
            deadline: Duration::from_secs(15),
            requests: 32,
            requests_at_once: 4,
            upload: 8 << 20,
            download: 8 << 20,
            log_bytes: 64 << 10,
            log_lines: 200,
        }
    }
}

/// Component instances of one call, counted in core instances: adapters and shims included.
const CORE_INSTANCES_MAX: usize = 256;
const TABLES_MAX: usize = 64;
const MEMORIES_MAX: usize = 16;
/// Elements of all tables together.
const TABLE_ELEMENTS_SUM_MAX: usize = 4 * TABLE_ELEMENTS_MAX;

/// Which resource a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Memory,
    Table,
    /// The guests of all plugins together hold as much as the operator allows: no fault of this one.
    HostMemory,
}

/// Bounds the memory of one store: the sum over its memories, not each alone.
pub(crate) struct StoreLimiter {
    memory_max: usize,
    memory_used: usize,
    table_elements_used: usize,
    budget: Arc<MemoryBudget>,
    pub(crate) shortage: Option<Shortage>,
}

impl StoreLimiter {
    pub(crate) fn new(memory_max: u64, budget: Arc<MemoryBudget>) -> Self {
        let memory_max = usize::try_from(memory_max).unwrap_or(usize::MAX);
        StoreLimiter { memory_max, memory_used: 0, table_elements_used: 0, budget, shortage: None }
    }

    /// The most this call has held. Bytes.
    pub(crate) fn memory_high_water(&self) -> usize {
        self.memory_used
    }
}

impl Drop for StoreLimiter {
    fn drop(&mut self) {
        self.budget.give_back(self.memory_used);
    }
}

impl ResourceLimiter for StoreLimiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let grown = desired.saturating_sub(current);
        if self.memory_used.saturating_add(grown) > self.memory_max {
            self.shortage = Some(Shortage::Memory);
            return Ok(false);
        }
        if !self.budget.take(grown) {
            self.shortage = Some(Shortage::HostMemory);
            return Ok(false);
        }
        self.memory_used += grown;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let grown = desired.saturating_sub(current);
        if desired > TABLE_ELEMENTS_MAX || self.table_elements_used.saturating_add(grown) > TABLE_ELEMENTS_SUM_MAX {
            self.shortage = Some(Shortage::Table);
            return Ok(false);
        }
        self.table_elements_used += grown;
        Ok(true)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }
}

/// What all guests of the process may hold together.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    left: AtomicUsize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(MemoryBudget { left: AtomicUsize::new(usize::try_from(bytes).unwrap_or(usize::MAX)) })
    }

    /// What is not held by anybody. Bytes.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_bounded_in_sum() {
        let mut limiter = StoreLimiter::new(100, MemoryBudget::new(1000));

        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert!(!limiter.memory_growing(40, 41, None).unwrap());
        assert_eq!(limiter.shortage, Some(Shortage::Memory));
    }

    #[test]
    fn what_a_call_held_comes_back_when_it_ends() {
        let budget = MemoryBudget::new(100);
        let mut first = StoreLimiter::new(100, budget.clone());
        let mut second = StoreLimiter::new(100, budget);
        assert!(first.memory_growing(0, 80, None).unwrap());
        assert!(!second.memory_growing(0, 80, None).unwrap());
        assert_eq!(second.shortage, Some(Shortage::HostMemory));

        drop(first);

        assert!(second.memory_growing(0, 80, None).unwrap());
    }
}
