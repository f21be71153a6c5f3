#![no_main]

use tool_versions_fuzz::{bodies, meter};

libfuzzer_sys::fuzz_target!(|data: &[u8]| meter::run(bodies::constraint, data));
