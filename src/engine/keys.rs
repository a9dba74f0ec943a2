//! SSH keys of all Users as one file for sshd: which keys let in, and what is ours in a file that others
//! write to, too.
//!
//! A key is taken apart and written anew, so nothing of what a User holds comes into the file but a
//! type, base64 and a comment of ours: no option, no second line.

mod standing;

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use ssh_key::{PublicKey, public::KeyData};

pub use self::standing::{MachineWord, build_user_status};
use crate::api::containership::{AgentReport, RefusedKey, SshKey, UserSpec};

/// Most bytes of a key: twice the longest RSA key that sshd takes.
const KEY_BYTES: usize = 8192;
/// Bits that an RSA key may have; sshd takes no more.
const RSA_BITS: std::ops::RangeInclusive<usize> = 3072..=16384;
/// Characters of a key's name that stand in the file, at most.
const NAME_CHARS: usize = 40;
/// Owners that are named beside a key, at most.
const OWNERS: usize = 3;
/// What the comments of our keys begin with, by which a key of ours is known outside of the marks.
const COMMENT: &str = "containership.io:";
const BEGIN: &str = "# BEGIN containership.io keys";
const END: &str = "# END containership.io keys";
/// Bytes of one digest in a report, before base64: three users of four billion share one by chance.
const DIGEST_BYTES: usize = 6;
/// Characters of one digest.
const DIGEST_CHARS: usize = 8;
/// Users whose digests a report names, at most: 16 KiB. Beyond, machines say the hash of the whole file.
const REPORTED: usize = 2048;

/// Why a key lets nobody in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    #[error("the key is longer than {KEY_BYTES} bytes")]
    Long,
    #[error("the key is more than one line, or holds characters that are no text")]
    Lines,
    #[error("this is no public key of OpenSSH; nothing may stand before its type, options neither")]
    Form,
    #[error("keys of the type {0} are not accepted: take ed25519, ecdsa or rsa")]
    Type(String),
    #[error("the RSA key has {0} bits: at least 3072 are needed, and at most 16384 work")]
    Bits(usize),
}

/// Takes a key apart and writes it anew: its type and its base64, and nothing else.
///
/// # Errors
/// When the key lets nobody in, see [`KeyRefusal`].
pub fn normalize_key(text: &str) -> Result<String, KeyRefusal> {
    let text = text.trim();
    if text.len() > KEY_BYTES {
        return Err(KeyRefusal::Long);
    }
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err(KeyRefusal::Lines);
    }
    let mut words = text.split_ascii_whitespace();
    let (Some(type_), Some(data)) = (words.next(), words.next()) else {
        return Err(KeyRefusal::Form);
    };
    let parse_result = PublicKey::from_openssh(&format!("{type_} {data}"));
    let mut key = parse_result.map_err(|_| KeyRefusal::Form)?;
    match key.key_data() {
        KeyData::Ed25519(_) | KeyData::SkEd25519(_) | KeyData::SkEcdsaSha2NistP256(_) => {}
        // sshd takes no compressed point.
        KeyData::Ecdsa(point) if point.as_sec1_bytes().first() == Some(&4) => {}
        KeyData::Rsa(rsa) => {
            let modulus = rsa.n.as_positive_bytes().unwrap_or_default();
            let zeros = modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
            let bits = modulus.len() * 8 - zeros;
            if !RSA_BITS.contains(&bits) {
                return Err(KeyRefusal::Bits(bits));
            }
        }
        KeyData::Ecdsa(_) => return Err(KeyRefusal::Form),
        other => return Err(KeyRefusal::Type(other.algorithm().to_string())),
    }
    key.set_comment("");
    key.to_openssh().map_err(|_| KeyRefusal::Form)
}

/// Splits the keys of a User into those that let in, each with its name, and those that do not.
fn partition_keys(spec: &UserSpec) -> (BTreeMap<String, &SshKey>, Vec<RefusedKey>) {
    let (mut accepted_keys, mut refused_keys) = (BTreeMap::new(), Vec::new());
    for (place, key) in spec.ssh_keys.iter().flatten().enumerate() {
        match normalize_key(&key.key) {
            Ok(line) => {
                accepted_keys.entry(line).or_insert(key);
            }
            Err(reason) => {
                let key_names = [&key.id, &key.fingerprint, &key.name].into_iter().flatten();
                let key_name = key_names.into_iter().find(|name| !name.is_empty()).cloned();
                let key = key_name.unwrap_or_else(|| format!("ssh_keys[{place}]"));
                refused_keys.push(RefusedKey { key, message: reason.to_string() });
            }
        }
    }
    (accepted_keys, refused_keys)
}

/// Digest of a User and of the keys that let them in.
fn user_digest<'a>(user: &str, keys: impl Iterator<Item = &'a String>) -> String {
    let mut hash = Sha256::new_with_prefix(user);
    for key in keys {
        hash.update("\n");
        hash.update(key);
    }
    BASE64_URL_SAFE_NO_PAD.encode(&hash.finalize()[..DIGEST_BYTES])
}

/// The keys of all Users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    /// Owners by key.
    keys: BTreeMap<String, BTreeSet<String>>,
    digests: BTreeSet<String>,
}

impl KeySet {
    /// Takes the keys of these Users, each by the name of its object.
    pub fn new<'a>(users: impl IntoIterator<Item = (&'a str, &'a UserSpec)>) -> Self {
        let mut set = Self::default();
        for (user, spec) in users {
            let (accepted_keys, _) = partition_keys(spec);
            set.digests.insert(user_digest(user, accepted_keys.keys()));
            for (line, key) in accepted_keys {
                let owner =
                    format!("{user}/{}", sanitize_name(key.name.as_deref().unwrap_or_default()));
                set.keys.entry(line).or_default().insert(owner);
            }
        }
        set
    }

    /// Does no key let anybody in?
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the digests of all Users in the form of [`AgentReport::users`].
    pub fn joined_digests(&self) -> String {
        if self.digests.len() > REPORTED {
            return String::new();
        }
        self.digests.iter().map(String::as_str).collect()
    }

    /// Returns what stands for the keys in a file.
    pub fn build_block(&self) -> KeyBlock {
        let line = |(key, owners): (&String, &BTreeSet<String>)| {
            let owner_names: Vec<&str> = owners.iter().take(OWNERS).map(String::as_str).collect();
            let suffix = if owners.len() > OWNERS { ",…" } else { "" };
            format!("{key} {COMMENT}{}{suffix}\n", owner_names.join(","))
        };
        KeyBlock::new(self.keys.iter().map(line).collect())
    }
}

/// Returns a name as it may stand in a comment.
fn sanitize_name(name: &str) -> String {
    let sanitize_char =
        |c: char| if c.is_ascii_alphanumeric() || "-._@".contains(c) { c } else { '_' };
    name.chars().take(NAME_CHARS).map(sanitize_char).collect()
}

/// Does a report say that a User of this digest stands, or the whole of this hash?
fn is_installed(report: &AgentReport, digest: &str, hash: &str) -> bool {
    // Agents write them sorted.
    let (digests, _) = report.users.as_bytes().as_chunks::<DIGEST_CHARS>();
    report.keys == hash
        || digests.binary_search_by(|chunk| chunk[..].cmp(digest.as_bytes())).is_ok()
}

/// What is ours in a key file: lines of keys between two marks, the first of which bears their hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBlock {
    hash: String,
    keys: String,
}

impl KeyBlock {
    fn new(keys: String) -> Self {
        let digest = Sha256::digest(&keys);
        let hash =
            digest.iter().take(16).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        Self { hash, keys }
    }

    /// Returns the hash of the lines.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the lines of keys.
    pub fn keys(&self) -> &str {
        &self.keys
    }

    /// Finds the block in a file, where it is as it was written.
    pub fn find_in_file(file: &[u8]) -> Option<Self> {
        let file = std::str::from_utf8(file).ok()?;
        let begin = file.lines().find(|line| line.starts_with(BEGIN))?;
        let (_, rest) = file.split_once(begin)?;
        let (keys, _) = rest.strip_prefix('\n')?.split_once(END)?;
        let block = Self::new(keys.to_owned());
        begin.contains(&block.hash).then_some(block)
    }

    /// Returns a file with this block. Of the file before, lines of others stay where they are
    /// `keeps_others`.
    pub fn render_file(&self, old_file: &[u8], keeps_others: bool) -> Vec<u8> {
        let mut file = if keeps_others { foreign_lines(old_file) } else { Vec::new() };
        let Self { hash, keys } = self;
        let note = "written by Navigator from the cluster's Users, edits are undone";
        file.extend_from_slice(format!("{BEGIN} {hash}, {note}\n{keys}{END}\n").as_bytes());
        file
    }
}

/// Returns the lines of a file that are not ours. Lines between our marks are, and so are keys with our
/// comment where a mark is lost.
pub fn foreign_lines(file: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    let is_mark = |line: &[u8], mark: &str| line.starts_with(mark.as_bytes());
    let comment = format!(" {COMMENT}").into_bytes();
    let (mut kept_lines, mut is_inside) = (Vec::new(), false);
    for (index, line) in lines.iter().enumerate() {
        if is_mark(line, BEGIN) {
            is_inside = lines[index..].iter().any(|line| is_mark(line, END));
        } else if is_mark(line, END) {
            is_inside = false;
        } else if !is_inside && !line.windows(comment.len()).any(|part| part == comment) {
            kept_lines.extend_from_slice(line);
        }
    }
    if kept_lines.last().is_some_and(|byte| *byte != b'\n') {
        kept_lines.push(b'\n');
    }
    kept_lines
}

#[cfg(test)]
mod tests;
