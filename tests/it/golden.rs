//! Expected outputs in `tests/golden`. `UPDATE_GOLDEN=1` rewrites them; read the diff first.

use std::{fs, path::Path};

/// Compares `text` with the file `tests/golden/NAME`.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    #[expect(clippy::disallowed_methods, reason = "a switch of the tests, not of the product")]
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("failed to read {}: {error}; UPDATE_GOLDEN=1 writes it", path.display())
    });
    assert_eq!(text, expected, "{} differs; UPDATE_GOLDEN=1 rewrites it", path.display());
}
