//! Calls as bytes: one way to make every call, whatever its messages are.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use conductor_tests::people::Person;
use tokio::time::timeout;
use tonic::{
    Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

/// How long a call may take to say its first word.
const PATIENCE: Duration = Duration::from_secs(20);

/// Messages as they are on the wire.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

/// Makes a call with one message, and gives the first message of its answer;
/// nothing if the answer is fine and has none.
pub async fn call(
    channel: &Channel,
    path: &str,
    person: Option<&Person>,
    message: Bytes,
) -> Result<Bytes, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = Request::new(tokio_stream::once(message));
    if let Some(person) = person {
        *request.metadata_mut() = person.metadata();
    }
    let answered = async {
        let mut answer = client.streaming(request, path.parse().unwrap(), Raw).await?.into_inner();
        Ok(answer.message().await?.unwrap_or_default())
    };
    timeout(PATIENCE, answered).await.unwrap_or_else(|_| panic!("{path} said nothing for {PATIENCE:?}"))
}
