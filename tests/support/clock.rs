//! What a process used of the processors.

#![expect(unsafe_code, reason = "reads another process's clock; says why it is sound")]

use std::time::Duration;

use nix::libc;

/// What all threads of a process used, those that ended as well.
pub(crate) fn on_processor(pid: u32) -> Duration {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both write to a place of their own that outlives the call.
    let errors = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock)
            | libc::clock_gettime(clock, &raw mut time)
    };
    assert_eq!(errors, 0, "{}", std::io::Error::last_os_error());
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap();
    Duration::new(u64::try_from(time.tv_sec).unwrap(), nanoseconds)
}
