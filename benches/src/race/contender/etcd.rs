//! etcd: the mutex of its own Go client (`clientv3/concurrency`). Each holder or waiter has a key below the name; the
//! oldest key holds the lock, and a waiter watches only the key before its own.

use async_trait::async_trait;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::TTL;
use super::etcd_api::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest,
    RangeResponse, Request, Response, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::Failure;
use crate::locking::{Contender, Held};

const BY_AGE: i32 = 2;
const ASCENDING: i32 = 1;
const DESCENDING: i32 = 2;
const DELETE: i32 = 1;
const NO_PUTS: i32 = 0;

/// One connection carries the requests of all tasks. One lease, which outlives the run, is theirs.
pub(crate) struct Client {
    grpc: Grpc<Channel>,
    lease: i64,
    process: u32,
}

impl Client {
    pub(crate) async fn connect(url: &str, process: u32) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true);
        let grpc = Grpc::new(endpoint.connect().await?);
        let ttl = i64::try_from(TTL.as_secs())?;
        let path = "/etcdserverpb.Lease/LeaseGrant";
        let lease: LeaseGrantResponse = call(&grpc, path, LeaseGrantRequest { ttl }).await?;
        Ok(Self {
            grpc,
            lease: lease.id,
            process,
        })
    }
}

/// One request, one answer.
async fn call<Q, A>(grpc: &Grpc<Channel>, path: &'static str, ask: Q) -> Result<A, Failure>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = grpc.clone();
    grpc.ready().await?;
    let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::default());
    let answer = grpc.unary(tonic::Request::new(ask), path, codec).await?;
    Ok(answer.into_inner())
}

async fn commit(grpc: &Grpc<Channel>, txn: TxnRequest) -> Result<TxnResponse, Failure> {
    call(grpc, "/etcdserverpb.KV/Txn", txn).await
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let folder = format!("race/{name}/").into_bytes();
        let key = format!("race/{name}/{}-{task}", self.process).into_bytes();
        let oldest = RangeRequest {
            limit: 1,
            sort_order: ASCENDING,
            sort_target: BY_AGE,
            ..below(&folder)
        };
        let put = PutRequest {
            key: key.clone(),
            value: Vec::new(),
            lease: self.lease,
        };
        let join = TxnRequest {
            compare: vec![Compare::made_at(&key, 0)],
            success: vec![Request::Put(put).into(), Request::Range(oldest).into()],
        };
        let joined = commit(&self.grpc, join).await?;
        let own = joined.header.map_or(0, |header| header.revision);
        if !joined.succeeded {
            return Err(format!("a key of the task was still below {name}").into());
        }
        let answers = joined
            .responses
            .into_iter()
            .filter_map(|answer| answer.response);
        let first = answers.flat_map(|Response::Range(range)| range.kvs).next();
        if first.is_some_and(|first| first.create_revision != own) {
            self.wait_for_turn(&folder, own).await?;
        }
        let grpc = self.grpc.clone();
        Ok(Box::new(Lock { grpc, key, own }))
    }
}

impl Client {
    /// Waits until no key below `folder` is older than the key of the revision `own`.
    async fn wait_for_turn(&self, folder: &[u8], own: i64) -> Result<(), Failure> {
        loop {
            let before = RangeRequest {
                limit: 1,
                sort_order: DESCENDING,
                sort_target: BY_AGE,
                max_create_revision: own - 1,
                ..below(folder)
            };
            let found: RangeResponse = call(&self.grpc, "/etcdserverpb.KV/Range", before).await?;
            let revision = found.header.map_or(own, |header| header.revision);
            let Some(last) = found.kvs.into_iter().next() else {
                return Ok(());
            };
            self.wait_for_delete(last.key, revision).await?;
        }
    }

    async fn wait_for_delete(&self, key: Vec<u8>, seen: i64) -> Result<(), Failure> {
        let create = WatchCreateRequest {
            key,
            start_revision: seen + 1,
            filters: vec![NO_PUTS],
        };
        let create = Some(create);
        let mut grpc = self.grpc.clone();
        grpc.ready().await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let ask = tonic::Request::new(WatchRequest { create });
        let codec = ProstCodec::default();
        let mut events = grpc.server_streaming(ask, path, codec).await?.into_inner();
        loop {
            let next: Option<WatchResponse> = events.message().await?;
            let next = next.ok_or("etcd ended a watch")?;
            if next.canceled {
                return Err(format!("etcd cancelled a watch: {}", next.cancel_reason).into());
            }
            if next.events.iter().any(|event| event.kind == DELETE) {
                return Ok(());
            }
        }
    }
}

/// All keys that begin with `folder`.
fn below(folder: &[u8]) -> RangeRequest {
    let mut end = folder.to_vec();
    if let Some(last) = end.last_mut() {
        // The folder ends with '/'. So '0', the next byte, ends its keys.
        *last += 1;
    }
    RangeRequest {
        key: folder.to_vec(),
        range_end: end,
        ..RangeRequest::default()
    }
}

struct Lock {
    grpc: Grpc<Channel>,
    key: Vec<u8>,
    /// The revision at which the key was made.
    own: i64,
}

#[async_trait]
impl Held for Lock {
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        let Self { grpc, key, own } = *self;
        let leave = TxnRequest {
            compare: vec![Compare::made_at(&key, own)],
            success: vec![Request::Delete(DeleteRangeRequest { key }).into()],
        };
        if commit(&grpc, leave).await?.succeeded {
            Ok(())
        } else {
            Err("the key of a lock was gone at its release".into())
        }
    }
}
