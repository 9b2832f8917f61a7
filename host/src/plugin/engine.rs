use std::num::NonZeroUsize;
use std::time::Duration;

use tracing::{info, warn};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, Strategy,
    WasmBacktraceDetails,
};

/// How often a running guest is asked whether it must stop, and yields its thread.
pub(crate) const EPOCH_TICK: Duration = Duration::from_millis(2);

/// The largest linear memory that any plugin may be granted. Bytes.
pub const MEMORY_BYTES_MAX: u64 = 256 << 20;

/// The largest table that any plugin may have. Elements.
pub(crate) const TABLE_ELEMENTS_MAX: usize = 100_000;

/// Whether memory for guests is reserved at start, which makes a fresh instance several times cheaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Reserve it where the machine allows; say so where it does not.
    #[default]
    Auto,
    On,
    Off,
}

/// Builds the engine that every guest of this process runs on. `slots` is how many calls may run at once.
pub(crate) fn guest_engine(pooling: Pooling, slots: usize) -> wasmtime::Result<Engine> {
    let slots = u32::try_from(slots.clamp(1, 1000)).unwrap_or(1000);
    let build = |pool: Option<&PoolingAllocationConfig>| {
        let mut config = strict_config();
        if let Some(pool) = pool {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool.clone()));
        }
        Engine::new(&config)
    };
    let (engine, pooled) = match pooling {
        Pooling::Off => (build(None)?, false),
        Pooling::On => (build(Some(&pool(slots)))?, true),
        Pooling::Auto => match build(Some(&pool(slots))) {
            Ok(engine) => (engine, true),
            Err(error) => {
                warn!(
                    "no pool of guest memory: {error:#}; guests run without one, slower (pooling = \"off\" hides this)"
                );
                (build(None)?, false)
            }
        },
    };
    start_ticker(&engine)?;
    metrics::gauge!("outboxd_guest_pool").set(if pooled { 1.0 } else { 0.0 });
    info!(pooled, slots, "the sandbox is ready");
    Ok(engine)
}

/// Everything a guest may contain, and how it is compiled. Each proposal that plugins do not need is off.
pub(crate) fn strict_config() -> Config {
    let mut config = Config::new();
    // Multi-memory stays on: the adapters between the parts of a composed component use two memories. Tail calls stay on:
    // a size-optimised JavaScript engine needs them.
    config
        .wasm_component_model(true)
        .wasm_component_model_async(false)
        .concurrency_support(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false)
        .gc_support(false)
        .wasm_threads(false)
        .shared_memory(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .wasm_stack_switching(false);
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .parallel_compilation(true)
        // Registering unwind tables is slow when many modules come and go.
        .native_unwind_info(false)
        .epoch_interruption(true)
        .consume_fuel(false)
        // Else an environment variable decides.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(NonZeroUsize::new(20));
    // 512 KiB for the guest of a fiber of 2 MiB: the difference is all that host code on the fiber may use.
    config.max_wasm_stack(512 << 10).async_stack_size(2 << 20).memory_init_cow(true);
    config
}

fn pool(slots: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    // Twice the slots: a trial instance, or a call that is just being dropped, must not find the pool full.
    let slots = slots.saturating_mul(2);
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(8))
        .total_memories(slots.saturating_mul(2))
        .total_tables(slots.saturating_mul(4))
        .total_stacks(slots.saturating_mul(2))
        .max_core_instances_per_component(200)
        .max_tables_per_component(64)
        .max_memories_per_component(32)
        .max_tables_per_module(2)
        .max_memories_per_module(2)
        .max_component_instance_size(10 << 20)
        .max_core_instance_size(10 << 20)
        .table_elements(TABLE_ELEMENTS_MAX)
        .max_memory_size(MEMORY_BYTES_MAX as usize)
        .linear_memory_keep_resident(512 << 10)
        .table_keep_resident(64 << 10)
        .max_unused_warm_slots(slots)
        .decommit_batch_size(1)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Ticks from a thread of its own: a task would starve exactly when it is needed. Ends with the engine.
fn start_ticker(engine: &Engine) -> wasmtime::Result<()> {
    let weak = engine.weak();
    let tick = move || {
        loop {
            std::thread::sleep(EPOCH_TICK);
            match weak.upgrade() {
                Some(engine) => engine.increment_epoch(),
                None => return,
            }
        }
    };
    std::thread::Builder::new().name("epoch".into()).spawn(tick)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use wasmtime::component::Component;

    use super::*;

    /// Features unify across a build, and defaults change with versions: so what counts is asked at run time.
    #[test]
    fn exactly_the_wanted_proposals_are_on() {
        let engine = Engine::new(&strict_config()).unwrap();

        let features = format!("{:?}", engine.get_wasm_features());
        let mut on: Vec<&str> =
            features.trim_start_matches("WasmFeatures(").trim_end_matches(')').split(" | ").collect();
        on.sort_unstable();

        let mut wanted = [
            "MUTABLE_GLOBAL",
            "SATURATING_FLOAT_TO_INT",
            "SIGN_EXTENSION",
            "REFERENCE_TYPES",
            "MULTI_VALUE",
            "BULK_MEMORY",
            "SIMD",
            "TAIL_CALL",
            "FLOATS",
            "MULTI_MEMORY",
            "EXTENDED_CONST",
            "COMPONENT_MODEL",
        ];
        wanted.sort_unstable();
        assert_eq!(on, wanted);
    }

    #[test]
    fn one_component_of_each_banned_proposal_is_refused() {
        let engine = Engine::new(&strict_config()).unwrap();
        let core = |fields: &str| format!("(component (core module {fields}))");
        for (proposal, text) in [
            ("gc", core("(type (struct (field i32)))")),
            ("gc arrays", core("(type (array (mut i8)))")),
            ("i31", core("(func (drop (ref.i31 (i32.const 1))))")),
            ("function references", core("(type $f (func)) (func (param (ref $f)) (call_ref $f (local.get 0)))")),
            ("exceptions", core("(tag $t) (func (throw $t))")),
            ("try_table", core("(func (try_table))")),
            ("threads", core("(memory 1 1 shared)")),
            ("atomics", core("(memory 1) (func (drop (i32.atomic.load (i32.const 0))))")),
            ("memory64", core("(memory i64 1)")),
            ("table64", core("(table i64 1 funcref)")),
            ("relaxed simd", core("(func (param v128) (result v128) (i32x4.relaxed_trunc_f32x4_s (local.get 0)))")),
            ("stack switching", core("(type $f (func)) (type $c (cont $f))")),
            (
                "wide arithmetic",
                core(
                    "(func (param i64 i64 i64 i64) (result i64 i64) (i64.add128 (local.get 0) (local.get 1) (local.get 2) (local.get 3)))",
                ),
            ),
            ("custom page sizes", core("(memory 1 (pagesize 1))")),
            ("shared everything", core("(global (shared i32) (i32.const 0))")),
            ("component async", "(component (import \"f\" (func async)))".into()),
            ("component streams", "(component (type (stream u8)))".into()),
            ("component futures", "(component (type (future u8)))".into()),
            ("error context", "(component (type error-context))".into()),
            ("component values", "(component (import \"v\" (value string)))".into()),
        ] {
            let bytes = wat::parse_str(&text).unwrap_or_else(|error| panic!("{proposal}: {error}"));
            assert!(Component::from_binary(&engine, &bytes).is_err(), "{proposal} was accepted");
        }
    }
}
