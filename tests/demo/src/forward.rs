//! Connections of this machine's browsers to the cluster's web console.

use std::path::PathBuf;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Forwards connections to the address in this file, which the demo writes when it has installed the chart.
pub(super) async fn forward(listener: TcpListener, target: PathBuf) {
    while let Ok((mut near, _)) = listener.accept().await {
        let target = target.clone();
        tokio::spawn(async move {
            let address = tokio::fs::read_to_string(target).await.ok()?;
            let mut far = TcpStream::connect(address.trim()).await.ok()?;
            copy_bidirectional(&mut near, &mut far).await.ok()
        });
    }
}
