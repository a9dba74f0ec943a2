//! The seed of a test that takes other turns each time.

/// Returns the seed that `NAVIGATOR_TEST_SEED` asks for, or a random one. It is printed, so it stands in
/// whatever a failed test says.
#[expect(clippy::disallowed_methods, reason = "how a run is repeated")]
#[expect(clippy::print_stderr, reason = "shown when the test fails")]
pub(crate) fn seed() -> u64 {
    let asked = std::env::var("NAVIGATOR_TEST_SEED").ok();
    let seed = asked.map_or_else(rand::random, |seed| seed.parse().expect("a seed is a number"));
    eprintln!("NAVIGATOR_TEST_SEED={seed} repeats this");
    seed
}
