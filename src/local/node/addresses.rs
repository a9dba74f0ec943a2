//! The loopback address of each pod, which is its own for as long as the folder exists.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

use crate::local::state_folder::{read_if_there, write_own};

/// The addresses that were given out, by pod.
#[derive(Debug)]
pub(crate) struct PodAddresses {
    file: PathBuf,
    given: Mutex<BTreeMap<String, Ipv4Addr>>,
}

impl PodAddresses {
    /// Reads the addresses that were given out before.
    pub(crate) fn open(file: PathBuf) -> io::Result<Self> {
        let given = match read_if_there(&file)? {
            Some(text) => serde_json::from_str(&text)?,
            None => BTreeMap::new(),
        };
        Ok(Self { file, given: Mutex::new(given) })
    }

    /// Returns the address of a pod. A later pod of the same name gets the same address: the
    /// database may have told it to other nodes.
    pub(crate) fn of(&self, namespace: &str, pod: &str) -> io::Result<Ipv4Addr> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{namespace}/{pod}");
        if let Some(address) = given.get(&key) {
            return Ok(*address);
        }
        let [_, second, third, _] = network(&self.file.to_string_lossy()).octets();
        let free = (third..=255)
            .flat_map(|third| (1..=254).map(move |host| Ipv4Addr::new(127, second, third, host)))
            .find(|address| given.values().all(|taken| taken != address))
            .ok_or_else(|| io::Error::other("no loopback address is left"))?;
        given.insert(key, free);
        write_own(&self.file, serde_json::to_string_pretty(&*given)?.as_bytes())?;
        Ok(free)
    }
}

/// Returns the first address for the pods of a folder. It is a hash of the folder's path, so that
/// two installations can run side by side. Other programs use 127.0 and networks near it.
fn network(file: &str) -> Ipv4Addr {
    let hash = Sha256::digest(file);
    Ipv4Addr::new(127, 20 + hash[0] % 80, hash[1] / 2, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_pods_own_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("addresses.json");
        let addresses = PodAddresses::open(file.clone()).unwrap();
        let first = addresses.of("default", "a-0").unwrap();
        let second = addresses.of("other", "a-0").unwrap();
        assert_ne!(first, second);
        assert!(first.is_loopback() && first != Ipv4Addr::LOCALHOST);
        let again = PodAddresses::open(file).unwrap();
        assert_eq!(again.of("other", "a-0").unwrap(), second);
        assert_eq!(again.of("default", "a-0").unwrap(), first);
        assert!(![first, second].contains(&again.of("default", "a-1").unwrap()));
    }

    #[test]
    fn folders_begin_at_addresses_of_their_own() {
        assert_ne!(network("/a/addresses.json"), network("/b/addresses.json"));
        for name in 0..500 {
            let [first, second, ..] = network(&name.to_string()).octets();
            assert!(first == 127 && (20..100).contains(&second));
        }
    }
}
