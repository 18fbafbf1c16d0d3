//! A body gathered whole, within bounds of bytes and time.

use std::{fmt, time::Duration};

use api::{Code, Error, limit};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

/// It must be all there by then.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why a body could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    TooLarge,
    Broken,
    Late,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "body: over {} bytes", limit::REQUEST_BODY_BYTES_MAX),
            Self::Broken => f.write_str("body: broke off before its end"),
            Self::Late => write!(f, "body: not all there after {} s", DEADLINE.as_secs()),
        }
    }
}

impl From<BodyFault> for Error {
    fn from(fault: BodyFault) -> Self {
        let code = match fault {
            BodyFault::TooLarge | BodyFault::Broken => Code::InvalidArgument,
            BodyFault::Late => Code::DeadlineExceeded,
        };
        Error::new(code, fault.to_string())
    }
}

/// The body of a request that is small, as those in JSON are.
pub async fn whole_body(body: Body) -> Result<Bytes, BodyFault> {
    tokio::time::timeout(DEADLINE, gather(body)).await.map_err(|_| BodyFault::Late)?
}

async fn gather(body: Body) -> Result<Bytes, BodyFault> {
    let mut body = body.into_data_stream();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| BodyFault::Broken)?;
        if bytes.len() + chunk.len() > limit::REQUEST_BODY_BYTES_MAX {
            return Err(BodyFault::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}
