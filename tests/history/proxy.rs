//! A way to etcd that can be cut, or fall silent with every connection open.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// Connections stay open, and their bytes wait.
    Stalled,
    Cut,
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    way: watch::Sender<Way>,
}

impl Proxy {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, seen) = watch::channel(Way::Open);
        #[expect(clippy::disallowed_methods, reason = "ends with the proxy")]
        tokio::spawn(listen(listener, target, seen));
        Self { address, way }
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

/// Serves until the proxy is dropped.
async fn listen(listener: TcpListener, target: SocketAddr, mut way: watch::Receiver<Way>) {
    let mut open = tokio::task::JoinSet::new();
    loop {
        let caller = tokio::select! {
            changed = way.changed() => match changed {
                Ok(()) => {
                    if *way.borrow_and_update() == Way::Cut {
                        open.shutdown().await;
                    }
                    continue;
                }
                Err(_) => return,
            },
            accepted = listener.accept() => accepted.unwrap().0,
        };
        if *way.borrow() == Way::Cut {
            continue;
        }
        let way = way.clone();
        open.spawn(async move {
            let Ok(server) = TcpStream::connect(target).await else { return };
            for stream in [&caller, &server] {
                // Without this, every answer would wait for an acknowledgement.
                drop(stream.set_nodelay(true));
            }
            let (from_caller, to_caller) = caller.into_split();
            let (from_server, to_server) = server.into_split();
            // The end of one direction is the end of both.
            tokio::select! {
                () = copy(from_caller, to_server, way.clone()) => {}
                () = copy(from_server, to_caller, way) => {}
            }
        });
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: watch::Receiver<Way>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if way.wait_for(|way| *way != Way::Stalled).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
