//! The processes behind the API server's Service: Git does not connect to them.

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use serving::call::{CallError, call};

use crate::proxy::Outbound;

/// The wait after a read, and after one that failed.
const WAIT: Duration = Duration::from_secs(300);
const AGAIN: Duration = Duration::from_secs(10);

/// Reads their addresses, which each API server writes into one object.
///
/// # Errors
/// The call failed.
pub async fn endpoints(client: &Client) -> Result<Vec<SocketAddr>, CallError> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let slice = call("read the API server's addresses", slices.get("kubernetes")).await?;
    let ports = slice.ports.unwrap_or_default();
    let ports = ports
        .iter()
        .filter_map(|port| u16::try_from(port.port?).ok());
    let ports: Vec<u16> = ports.collect();
    let addresses = slice.endpoints.into_iter().flat_map(|one| one.addresses);
    let addresses = addresses.filter_map(|address| address.parse().ok());
    Ok(addresses
        .flat_map(|address| {
            ports
                .iter()
                .map(move |port| SocketAddr::new(address, *port))
        })
        .collect())
}

/// Denies them, and reads them again from time to time. Without an answer the last ones stay denied.
pub async fn deny(client: Client, outbound: Outbound) {
    loop {
        let wait = match endpoints(&client).await {
            Ok(endpoints) => {
                outbound.deny(endpoints);
                WAIT
            }
            Err(error) => {
                tracing::warn!(%error, "new addresses of the API server are not denied to git");
                AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
}
