//! A pilot's way to its API, which can be cut: the port is closed, or every call is hung up on, or
//! no call is answered. Keeps when calls came while it was cut.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{loopback::own, wait::until};

/// What becomes of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Calls reach the API.
    Open,
    /// The port is closed.
    Closed,
    /// Calls are noted and hung up on.
    Refusing,
    /// Calls are noted and never answered.
    Silent,
}

/// One address on loopback, and the way behind it.
pub(crate) struct Gateway {
    address: SocketAddr,
    way: watch::Sender<Way>,
    calls: Arc<Mutex<Vec<Instant>>>,
}

impl Gateway {
    /// An open way to `target`, at `host`, which is [`own`] to this run.
    pub(crate) async fn start(host: [u8; 4], target: SocketAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((own(host), 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, seen) = watch::channel(Way::Open);
        let calls = Arc::default();
        let listen = listen(listener, target, seen, Arc::clone(&calls));
        #[expect(clippy::disallowed_methods, reason = "ends with the gateway")]
        tokio::spawn(listen);
        Self { address, way, calls }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends every connection and treats calls in this way from now on.
    pub(crate) async fn set(&self, way: Way) {
        self.way.send_replace(way);
        until(&format!("{way:?} at {}", self.address), Duration::from_secs(30), async || {
            let listens = TcpStream::connect(self.address).await;
            match (way, listens) {
                (Way::Closed, Ok(_)) => Err("somebody listens".to_owned()),
                (Way::Closed, Err(_)) | (_, Ok(_)) => Ok(()),
                (_, Err(error)) => Err(error.to_string()),
            }
        })
        .await;
        self.calls.lock().unwrap().clear();
    }

    /// When calls came since the way was set, but for those that reached the API.
    pub(crate) fn calls(&self) -> Vec<Instant> {
        self.calls.lock().unwrap().clone()
    }
}

/// Serves until the gateway is dropped.
async fn listen(
    listener: TcpListener,
    target: SocketAddr,
    mut way: watch::Receiver<Way>,
    calls: Arc<Mutex<Vec<Instant>>>,
) {
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    loop {
        let now = *way.borrow_and_update();
        if now == Way::Closed {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.unwrap());
        }
        // Connections of an earlier way end with this set.
        let mut open = tokio::task::JoinSet::new();
        loop {
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await.unwrap().0,
                    None => std::future::pending().await,
                }
            };
            let mut caller = tokio::select! {
                changed = way.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                caller = accepted => caller,
            };
            if now != Way::Open {
                calls.lock().unwrap().push(Instant::now());
            }
            open.spawn(async move {
                match now {
                    Way::Open => {
                        let Ok(mut server) = TcpStream::connect(target).await else { return };
                        drop(copy_bidirectional(&mut caller, &mut server).await);
                    }
                    Way::Silent => std::future::pending().await,
                    Way::Closed | Way::Refusing => {}
                }
            });
        }
    }
}
