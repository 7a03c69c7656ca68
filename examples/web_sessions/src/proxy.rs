//! One address for all servers: each connection goes to the next server, as with a load balancer.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

/// Forwards connections until it is dropped.
pub(crate) async fn forward(listener: TcpListener, servers: Vec<SocketAddr>) -> io::Result<()> {
    for next in 0.. {
        let (mut user, _) = listener.accept().await?;
        let mut servers = servers.clone();
        let first = next % servers.len();
        servers.rotate_left(first);
        tokio::spawn(async move {
            for server in servers {
                // A server that cannot be reached has received nothing. After that, a request is not repeated: it may
                // have been done.
                if let Ok(mut server) = TcpStream::connect(server).await {
                    let _ = tokio::io::copy_bidirectional(&mut user, &mut server).await;
                    return;
                }
            }
        });
    }
    Ok(())
}
