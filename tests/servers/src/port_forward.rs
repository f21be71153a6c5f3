//! A loopback address of a Service, as `kubectl port-forward` gives it: the web console accepts a login over plain HTTP there alone.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Forwards each connection to the target of that moment; closes it if there is none.
pub async fn forward(listener: TcpListener, target: impl Fn() -> Option<String>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let target = target();
        tokio::spawn(async move {
            let mut far = TcpStream::connect(target?).await.ok()?;
            copy_bidirectional(&mut near, &mut far).await.ok()
        });
    }
}
