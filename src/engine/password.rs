//! Passwords of database users: made, refused, and hashed as the databases check them.
//!
//! A database that can read bcrypt gets bcrypt, with the mark `$2a$`. A password in plain text is shown
//! by nothing here.

use bcrypt::{HashParts, Version};
use sha2::{Digest, Sha256};

/// Cost of a hash: each one more takes twice the time. The databases' own is 10.
const COST: u32 = 10;
/// Most bytes of a password: bcrypt leaves out what is beyond.
const MAX_BYTES: usize = 72;
/// Random bytes of a password that is made.
const RANDOM_BYTES: usize = 32;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Digits of the largest number of [`RANDOM_BYTES`] bytes.
const LENGTH: usize = 43;

/// The hash by which a database checks passwords.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PasswordHashing {
    /// bcrypt, with the mark `$2a$`.
    #[default]
    Bcrypt,
    /// SHA-256 of the password alone, as 64 hexadecimal digits, for a database that knows no slower
    /// hash. It keeps a password that is long and random; who reads the hash of a word finds the word.
    Sha256,
}

impl PasswordHashing {
    /// Hashes a password.
    ///
    /// # Errors
    /// See [`PasswordRefusal`].
    pub fn hash(self, password: &str) -> Result<String, PasswordRefusal> {
        match self {
            Self::Bcrypt => hash_bcrypt(password),
            Self::Sha256 => check_password(password.as_bytes()).map(sha256_hex),
        }
    }

    /// Tells whether `hash` is one of `password`, of this kind.
    pub fn verify(self, password: &str, hash: &str) -> bool {
        match self {
            Self::Bcrypt => verify_bcrypt(password, hash),
            Self::Sha256 => {
                check_password(password.as_bytes()).is_ok_and(|text| sha256_hex(text) == hash)
            }
        }
    }
}

/// Tells whether a text has the form of [`PasswordHashing::Sha256`].
pub fn is_sha256(hash: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    hash.len() == 64 && hash.bytes().all(is_digit)
}

fn sha256_hex(password: &str) -> String {
    Sha256::digest(password).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// Why a password cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordRefusal {
    #[error("the password is empty")]
    Empty,
    #[error("the password has {0} bytes: at most {MAX_BYTES} count")]
    Long(usize),
    #[error("the password has a zero byte in it, at which bcrypt ends")]
    Zero,
    #[error("the password is not in UTF-8, and clients could not type it")]
    Bytes,
    #[error("the system gives no random numbers")]
    Random,
}

/// Makes a password: 32 random bytes, written with letters and digits alone.
///
/// # Errors
/// [`PasswordRefusal::Random`].
pub fn generate_password() -> Result<String, PasswordRefusal> {
    let mut number = [0; RANDOM_BYTES];
    getrandom::fill(&mut number).map_err(|_| PasswordRefusal::Random)?;
    Ok(in_base_62(number))
}

/// Writes a number, from its lowest digit, always as long.
fn in_base_62(mut number: [u8; RANDOM_BYTES]) -> String {
    let mut text = String::with_capacity(LENGTH);
    for _ in 0..LENGTH {
        let mut remainder = 0;
        for byte in &mut number {
            let part = remainder * 256 + usize::from(*byte);
            // A rest is below 62, so the quotient is below 256.
            *byte = u8::try_from(part / 62).unwrap_or_default();
            remainder = part % 62;
        }
        text.push(char::from(DIGITS[remainder]));
    }
    text
}

/// Returns the password in these bytes of a Secret, when it can be used.
///
/// # Errors
/// See [`PasswordRefusal`].
pub fn check_password(bytes: &[u8]) -> Result<&str, PasswordRefusal> {
    match bytes {
        [] => Err(PasswordRefusal::Empty),
        _ if bytes.len() > MAX_BYTES => Err(PasswordRefusal::Long(bytes.len())),
        _ if bytes.contains(&0) => Err(PasswordRefusal::Zero),
        _ => std::str::from_utf8(bytes).map_err(|_| PasswordRefusal::Bytes),
    }
}

/// Hashes a password, with a salt of its own. Takes tens of milliseconds, by intent.
///
/// # Errors
/// See [`PasswordRefusal`].
pub fn hash_bcrypt(password: &str) -> Result<String, PasswordRefusal> {
    check_password(password.as_bytes())?;
    let parts: HashParts =
        bcrypt::hash_with_result(password, COST).map_err(|_| PasswordRefusal::Random)?;
    Ok(parts.format_for_version(Version::TwoA))
}

/// Tells whether `hash` is one of `password`. Takes as long as [`hash_bcrypt`].
pub fn verify_bcrypt(password: &str, hash: &str) -> bool {
    check_password(password.as_bytes()).is_ok() && bcrypt::verify(password, hash).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn passwords_that_are_made_are_long_and_differ() {
        let made: BTreeSet<String> = (0..100).map(|_| generate_password().unwrap()).collect();
        assert_eq!(made.len(), 100);
        for password in &made {
            assert_eq!(password.len(), LENGTH);
            assert!(password.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{password}");
            assert!(check_password(password.as_bytes()).is_ok());
        }
    }

    #[test]
    fn each_number_has_its_own_text() {
        assert_eq!(in_base_62([0; 32]), "0".repeat(LENGTH));
        let mut sixty_three = [0; 32];
        sixty_three[31] = 63;
        assert_eq!(in_base_62(sixty_three), "11".to_owned() + &"0".repeat(LENGTH - 2));
        // 2^256 - 1 needs all digits.
        assert_ne!(in_base_62([0xff; 32]).pop(), Some('0'));
    }

    #[test]
    fn a_hash_is_of_one_password_and_carries_the_mark_that_databases_read() {
        let hashed = hash_bcrypt("pass'word").unwrap();
        assert!(hashed.starts_with("$2a$10$"), "{hashed}");
        assert_eq!(hashed.len(), 60);
        assert!(verify_bcrypt("pass'word", &hashed));
        assert!(!verify_bcrypt("pass'worD", &hashed));
        assert_ne!(hash_bcrypt("pass'word").unwrap(), hashed, "each has a salt of its own");
        for damaged in ["", "$2a$10$", "plain", &hashed[..59]] {
            assert!(!verify_bcrypt("pass'word", damaged), "{damaged}");
        }
    }

    #[test]
    fn a_hash_of_one_kind_is_none_of_the_other() {
        use PasswordHashing::{Bcrypt, Sha256};
        let (slow, fast) = (Bcrypt.hash("abc").unwrap(), Sha256.hash("abc").unwrap());
        assert_eq!(fast, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(is_sha256(&fast) && !is_sha256(&slow) && !is_sha256(&fast.to_uppercase()));
        assert!(Bcrypt.verify("abc", &slow) && Sha256.verify("abc", &fast));
        assert!(!Bcrypt.verify("abc", &fast) && !Sha256.verify("abc", &slow));
        assert!(!Sha256.verify("abd", &fast));
        assert_eq!(Sha256.hash(""), Err(PasswordRefusal::Empty));
    }

    #[test]
    fn what_bcrypt_would_cut_off_is_refused() {
        let long = "a".repeat(MAX_BYTES);
        assert_eq!(check_password(long.as_bytes()), Ok(long.as_str()));
        for (bytes, refusal) in [
            (&b""[..], PasswordRefusal::Empty),
            (&[b'a'; MAX_BYTES + 1], PasswordRefusal::Long(MAX_BYTES + 1)),
            (b"a\0b", PasswordRefusal::Zero),
            (b"\xff", PasswordRefusal::Bytes),
        ] {
            assert_eq!(check_password(bytes), Err(refusal));
        }
        assert_eq!(hash_bcrypt(""), Err(PasswordRefusal::Empty));
        assert!(!verify_bcrypt(&"a".repeat(MAX_BYTES + 1), &hash_bcrypt(&long).unwrap()));
    }
}
