//! How much freed memory stays with the program, for what relays bursts.
//!
//! A run of frames passes through buffers of some hundred kilobytes, which are freed as soon as it is
//! passed on. glibc takes blocks of 128 KiB and more from the kernel one by one, gives them back when
//! they are freed, and gives the end of its heap back where more than that is free. So each run's
//! buffers come as pages that the kernel has to find and clear first: a third of what the bridge took
//! for a frame of 2 KiB. Both bounds follow the largest block that was freed, so one is freed.

use std::hint::black_box;

/// Several times the largest run. Twice as much stays when it is freed.
const LARGEST: usize = 4 << 20;

/// Has what is freed from now on stay for what comes next. Where memory is managed in another way,
/// nothing changes.
pub fn keep_freed() {
    // Never written to, so that no page of it ever exists.
    drop(black_box(Vec::<u8>::with_capacity(black_box(LARGEST))));
}
