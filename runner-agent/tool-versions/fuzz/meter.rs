//! Measures the memory for one input. The limit of libFuzzer is for the whole process, far above the bound for one input.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The most bytes that one input may need: 32 MiB.
const MOST: usize = 32 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Meter;

#[global_allocator]
static METER: Meter = Meter;

// SAFETY: the system allocator does all the work; the rest is counters.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs a target, and panics when it needs too much memory.
pub fn run(target: fn(&[u8]), data: &[u8]) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    target(data);
    let needed = PEAK.load(Relaxed) - before;
    assert!(needed <= MOST, "{needed} bytes of memory for {} of input", data.len());
}
