//! Keys that let in and keys that do not, hostile ones among them; files of ours and of others; what a
//! status says.

use base64::prelude::BASE64_STANDARD;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::{Value, json};

use super::*;
use crate::api::containership::{User, UserStatus};

/// A key as it goes over the wire: its type, and then its parts, each with its length.
fn wire(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn line(type_: &str, parts: &[&[u8]]) -> String {
    let parts = [&[type_.as_bytes()], parts].concat();
    format!("{type_} {}", BASE64_STANDARD.encode(wire(&parts)))
}

fn ed25519(filling: u8) -> String {
    line("ssh-ed25519", &[&[filling; 32]])
}

fn rsa(bits: usize) -> String {
    line("ssh-rsa", &[&[1, 0, 1], &[&[0], &*vec![0xff; bits / 8]].concat()])
}

fn spec(keys: &[&str]) -> UserSpec {
    let key =
        |(at, key): (usize, &&str)| json!({"id": format!("k{at}"), "name": "a b\n#", "key": key});
    let keys: Vec<Value> = keys.iter().enumerate().map(key).collect();
    serde_json::from_value(json!({"ssh_keys": keys})).unwrap()
}

#[test]
fn keys_of_today_let_in_and_are_written_anew() {
    let point = |bytes: usize| [&[4][..], &vec![7; bytes]].concat();
    let ecdsa = |curve: &str, bytes| {
        line(&format!("ecdsa-sha2-{curve}"), &[curve.as_bytes(), &point(bytes)])
    };
    let sk_ecdsa = "sk-ecdsa-sha2-nistp256@openssh.com";
    for key in [
        ed25519(1),
        ecdsa("nistp256", 64),
        ecdsa("nistp384", 96),
        ecdsa("nistp521", 132),
        rsa(3072),
        rsa(4096),
        line("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"]),
        line(sk_ecdsa, &[b"nistp256", &point(64), b"ssh:"]),
    ] {
        for around in ["KEY", " KEY\n", "KEY someone@somewhere", "KEY a\tcomment \"of\" words\r\n"]
        {
            assert_eq!(
                normalize_key(&around.replace("KEY", &key)).as_ref(),
                Ok(&key),
                "{around:?}"
            );
        }
    }
}

#[test]
fn hostile_keys_let_nobody_in() {
    let key = ed25519(1);
    let data = key.split(' ').nth(1).unwrap();
    let short = wire(&[b"ssh-ed25519", &[1; 31]]);
    let trailing = [wire(&[b"ssh-ed25519", &[1; 32]]), b"junk".to_vec()].concat();
    let dsa: &[&[u8]] = &[&[1; 128], &[1; 20], &[1; 128], &[1; 128]];
    let compressed = [&[2][..], &[7; 32]].concat();
    use KeyRefusal::{Bits, Form, Lines, Long};
    let type_ = |name: &str| KeyRefusal::Type(name.to_owned());
    for (text, why) in [
        (String::new(), Form),
        ("keykey1".to_owned(), Form),
        ("ssh-rsa ABCDEF".to_owned(), Form),
        (format!("command=\"/bin/sh\" {key}"), Form),
        (format!("no-pty {key}"), Form),
        (format!("environment=\"LD_PRELOAD=/x\",cert-authority {key}"), Form),
        (format!("{key}\n{}", ed25519(2)), Lines),
        (format!("{key} a comment\ncommand=\"/bin/sh\" {key}"), Lines),
        (format!("ssh-ed25519 {}\n{}", &data[..20], &data[20..]), Lines),
        (format!("{key}\rcommand=\"x\""), Lines),
        (format!("{key}\0"), Lines),
        (format!("ssh-rsa {data}"), Form),
        (format!("ssh-ed25519 {}", BASE64_STANDARD.encode(&short)), Form),
        (format!("ssh-ed25519 {}", BASE64_STANDARD.encode(&trailing)), Form),
        (format!("ssh-ed25519 {data}{data}"), Form),
        (format!("ssh-ed25519 {}", "A".repeat(2 << 20)), Long),
        (format!("{key} {}", "x".repeat(2 << 20)), Long),
        (line("ssh-dss", dsa), type_("ssh-dss")),
        (line("ecdsa-sha2-nistp256", &[b"nistp256", &compressed]), Form),
        (line("ssh-future@example.org", &[b"x"]), type_("ssh-future@example.org")),
        (rsa(1024), Bits(1024)),
        (rsa(2048), Bits(2048)),
        (rsa(32768), Bits(32768)),
        (line("ssh-rsa", &[&[1, 0, 1], &[]]), Bits(0)),
        ("-----BEGIN OPENSSH PRIVATE KEY-----".to_owned(), Form),
    ] {
        let shown: String = text.chars().take(80).collect();
        assert_eq!(normalize_key(&text), Err(why), "{shown}");
    }
}

#[test]
fn a_file_holds_each_key_once_sorted_and_nothing_of_the_users_words() {
    let (a, b) = (ed25519(2), ed25519(1));
    let (anne, bob) = (spec(&[&a, &b, &a, "junk"]), spec(&[&b]));
    let set = KeySet::new([("anne", &anne), ("bob", &bob)]);
    let file = String::from_utf8(set.build_block().render_file(b"", false)).unwrap();
    let lines: Vec<&str> = file.lines().collect();
    assert!(lines[0].starts_with("# BEGIN containership.io keys "), "{file}");
    assert!(lines[0].contains(set.build_block().hash()), "{file}");
    assert_eq!(lines[1], format!("{b} containership.io:anne/a_b__,bob/a_b__"));
    assert_eq!(lines[2], format!("{a} containership.io:anne/a_b__"));
    assert_eq!(lines[3..], ["# END containership.io keys"]);
    // In which order the Users came does not matter, and one of two owners keeps a key.
    let turned = KeySet::new([("bob", &bob), ("anne", &anne)]);
    assert_eq!(turned.build_block(), set.build_block());
    let without = KeySet::new([("bob", &bob), ("anne", &spec(&[]))]);
    assert!(
        without.build_block().keys().contains(&b) && !without.build_block().keys().contains(&a)
    );
    assert!(KeySet::new([("carol", &spec(&["junk"]))]).is_empty());
}

#[test]
fn of_a_shared_file_only_our_lines_are_ours() {
    let old = KeySet::new([("anne", &spec(&[&ed25519(1)]))]).build_block();
    let new = KeySet::new([("anne", &spec(&[&ed25519(2)]))]).build_block();
    let (old_text, new_text) = (old.render_file(b"", false), new.render_file(b"", false));
    let theirs: &[u8] = b"# by hand\nssh-ed25519 AAAA \xff me\n";
    let joined = |parts: &[&[u8]]| parts.concat();
    let lost_end = old_text[..old_text.len() - END.len() - 1].to_vec();
    for (before, after) in [
        (Vec::new(), new_text.clone()),
        (old_text.clone(), new_text.clone()),
        (joined(&[theirs, &old_text]), joined(&[theirs, &new_text])),
        (joined(&[&old_text, theirs]), joined(&[theirs, &new_text])),
        (joined(&[&old_text, theirs, &old_text]), joined(&[theirs, &new_text])),
        // A key that was taken away does not stay because a mark was lost.
        (joined(&[&lost_end, theirs]), joined(&[theirs, &new_text])),
        (b"no end".to_vec(), joined(&[b"no end\n", &new_text])),
    ] {
        let told = String::from_utf8_lossy(&before).into_owned();
        assert_eq!(new.render_file(&before, true), after, "{told}");
        assert_eq!(new.render_file(&before, false), new_text);
    }
    assert_eq!(foreign_lines(&joined(&[theirs, &old_text])), theirs);
}

#[test]
fn a_block_is_known_again_unless_it_was_edited() {
    let block = KeySet::new([("anne", &spec(&[&ed25519(1)]))]).build_block();
    let file = block.render_file(b"x\n", true);
    assert_eq!(KeyBlock::find_in_file(&file).as_ref(), Some(&block));
    let empty = KeySet::default().build_block();
    assert_eq!(KeyBlock::find_in_file(&empty.render_file(b"", false)), Some(empty));
    let text = String::from_utf8(file).unwrap();
    for edited in [
        String::new(),
        text.replace("anne", "nina"),
        text.replace("# END", "ssh-rsa AAAA\n# END"),
        text.replace("# END", "#"),
        text.replacen("# BEGIN", "#", 1),
    ] {
        assert_eq!(KeyBlock::find_in_file(edited.as_bytes()), None, "{edited}");
    }
}

/// What an agent says that has these Users.
fn report(set: &KeySet, at: Timestamp) -> AgentReport {
    let keys = set.build_block().hash().to_owned();
    AgentReport { at: Time(at), keys, users: set.joined_digests(), cleaned: None, trouble: None }
}

#[test]
fn a_status_counts_the_machines_that_followed_and_names_the_silent() {
    let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let at = |minutes| begin + SignedDuration::from_mins(minutes);
    let (mut anne, bob) = (User::new("anne", spec(&[&ed25519(1), "junk"])), spec(&[&ed25519(3)]));
    let set = |anne: &User, bob: &UserSpec| KeySet::new([("anne", &anne.spec), ("bob", bob)]);
    let old = set(&anne, &bob);
    let word = |name: &str, report| MachineWord { name: name.to_owned(), created: begin, report };
    let condition = |status: &UserStatus, type_: &str| {
        let found = status.conditions.iter().find(|one| one.type_ == type_).unwrap();
        format!("{} {}", found.status, found.reason)
    };
    // Nothing was heard yet.
    let status = build_user_status(&anne, old.build_block().hash(), &[word("m1", None)], at(1));
    assert_eq!((status.progress.as_deref(), status.keys), (Some("0/1"), 1));
    assert_eq!(condition(&status, "Reconciling"), "True Writing");
    let refused = RefusedKey {
        key: "k1".to_owned(),
        message: normalize_key("junk").unwrap_err().to_string(),
    };
    assert_eq!(status.refused_keys, [refused]);
    assert_eq!(condition(&status, "Stalled"), "True KeysRefused");
    anne.spec = spec(&[&ed25519(1)]);
    anne.status = Some(status);
    // Both have it; that one of them has another Bob does not matter.
    let other = set(&anne, &spec(&[]));
    let words = [word("m1", Some(report(&old, at(1)))), word("m2", Some(report(&other, at(1))))];
    let status = build_user_status(&anne, old.build_block().hash(), &words, at(2));
    assert_eq!(status.progress.as_deref(), Some("2/2"));
    assert_eq!(condition(&status, "Ready"), "True Written");
    assert_eq!(condition(&status, "Stalled"), "False Progressing");
    assert_eq!(
        status.changed_at,
        Some(Time(at(1))),
        "the key that lets nobody in counts for nothing"
    );
    // Ten minutes later the key is taken away.
    anne.status = Some(status);
    anne.spec = spec(&[]);
    let new = set(&anne, &bob);
    let words = [word("m1", Some(report(&old, at(9)))), word("m2", Some(report(&new, at(12))))];
    let status = build_user_status(&anne, new.build_block().hash(), &words, at(12));
    assert_eq!((status.progress.as_deref(), status.silent_text.as_deref()), (Some("1/2"), None));
    assert_eq!(condition(&status, "Reconciling"), "True Writing");
    anne.status = Some(status.clone());
    assert_eq!(
        build_user_status(&anne, new.build_block().hash(), &words, at(13)),
        status,
        "time alone is no news"
    );
    // Five minutes later the machine has not followed, and after fifteen without a word the other is
    // silent, too.
    let status = build_user_status(&anne, new.build_block().hash(), &words, at(17));
    assert_eq!(status.silent_text.as_deref(), Some("m1"));
    assert_eq!(condition(&status, "Stalled"), "True MachinesSilent");
    assert_eq!(condition(&status, "Reconciling"), "False Writing");
    let status = build_user_status(&anne, new.build_block().hash(), &words, at(27));
    let machines = status.machines.unwrap();
    assert_eq!((machines.written, machines.silent), (1, vec!["m1".to_owned(), "m2".to_owned()]));
}

#[test]
fn of_very_many_users_a_report_says_the_hash_of_the_whole() {
    let one = spec(&[&ed25519(1)]);
    let names: Vec<String> = (0..=REPORTED).map(|at| format!("u{at}")).collect();
    let set = KeySet::new(names.iter().map(|name| (name.as_str(), &one)));
    assert_eq!(set.joined_digests(), "");
    let begin = "2026-01-01T00:00:00Z".parse().unwrap();
    let user = User::new("u1", one);
    let word =
        MachineWord { name: "m".to_owned(), created: begin, report: Some(report(&set, begin)) };
    let status = build_user_status(&user, set.build_block().hash(), &[word], begin);
    assert_eq!(status.progress.as_deref(), Some("1/1"));
}
