//! The loopback address of each pod, which is its own for as long as the folder exists.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

use crate::local::state_folder::{read_if_exists, write_private};

/// The addresses that were given out, by pod.
#[derive(Debug)]
pub(crate) struct PodAddresses {
    file: PathBuf,
    given: Mutex<BTreeMap<String, Ipv4Addr>>,
}

impl PodAddresses {
    /// Reads the addresses that were given out before.
    pub(crate) fn open(file: PathBuf) -> io::Result<Self> {
        let addresses = match read_if_exists(&file)? {
            Some(text) => serde_json::from_str(&text)?,
            None => BTreeMap::new(),
        };
        Ok(Self { file, given: Mutex::new(addresses) })
    }

    /// Returns the address of a pod. A later pod of the same name gets the same address: the
    /// database may have told it to other nodes.
    pub(crate) fn ensure_address(&self, namespace: &str, pod: &str) -> io::Result<Ipv4Addr> {
        let mut addresses = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{namespace}/{pod}");
        if let Some(address) = addresses.get(&key) {
            return Ok(*address);
        }
        let [_, second, third, _] = network_address(&self.file.to_string_lossy()).octets();
        let free_address = (third..=255)
            .flat_map(|third| (1..=254).map(move |host| Ipv4Addr::new(127, second, third, host)))
            .find(|address| addresses.values().all(|used_address| used_address != address))
            .ok_or_else(|| io::Error::other("no loopback address is left"))?;
        addresses.insert(key, free_address);
        write_private(&self.file, serde_json::to_string_pretty(&*addresses)?.as_bytes())?;
        Ok(free_address)
    }
}

/// Returns the first address for the pods of a folder. It is a hash of the folder's path, so that
/// two installations can run side by side. Other programs use 127.0 and networks near it.
fn network_address(file: &str) -> Ipv4Addr {
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
        let first = addresses.ensure_address("default", "a-0").unwrap();
        let second = addresses.ensure_address("other", "a-0").unwrap();
        assert_ne!(first, second);
        assert!(first.is_loopback() && first != Ipv4Addr::LOCALHOST);
        let again = PodAddresses::open(file).unwrap();
        assert_eq!(again.ensure_address("other", "a-0").unwrap(), second);
        assert_eq!(again.ensure_address("default", "a-0").unwrap(), first);
        assert!(![first, second].contains(&again.ensure_address("default", "a-1").unwrap()));
    }

    #[test]
    fn folders_begin_at_addresses_of_their_own() {
        assert_ne!(network_address("/a/addresses.json"), network_address("/b/addresses.json"));
        for name in 0..500 {
            let [first, second, ..] = network_address(&name.to_string()).octets();
            assert!(first == 127 && (20..100).contains(&second));
        }
    }
}
