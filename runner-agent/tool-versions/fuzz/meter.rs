//! How much memory a target needs: the limit that libFuzzer has is for the whole process, and far above what is right for one input.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The most that one input may need: 32 MiB.
const MOST: usize = 32 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Meter;

#[global_allocator]
static METER: Meter = Meter;

// SAFETY: all is done by the system's; beside it are only counters.
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

/// Runs a target, and fails when it needs too much.
pub fn run(target: fn(&[u8]), data: &[u8]) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    target(data);
    let needed = PEAK.load(Relaxed) - before;
    assert!(needed <= MOST, "{needed} bytes of memory for {} of input", data.len());
}
