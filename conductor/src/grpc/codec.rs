//! Protobuf with small buffers. tonic makes two for every call before anything
//! is said, and a tunnel is a call that lasts for days and mostly rests.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Bytes of each buffer at first; a larger message makes its own room.
const BUFFER: usize = 1 << 10;

/// What is encoded before it is handed on: tonic's own choice.
const YIELD_AT: usize = 32 << 10;

/// Encodes `T`, decodes `U`.
#[derive(Debug, Clone)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD_AT))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD_AT))
    }
}
