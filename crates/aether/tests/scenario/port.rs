//! Scenarios of ports.

use api::{Code, arrow::Chronus, exec::ExecRequest};
use bytes::Bytes;

use crate::lab::{Lab, Out, assert_error, until};

pub async fn dial(lab: &Lab) {
    assert_error(lab.service.port_dial(8123).await.map(drop), Code::NotFound, "nothing listens on port 8123");
    assert_error(lab.service.port_dial(0).await.map(drop), Code::InvalidArgument, "port");
    let server = "import socket
s = socket.create_server(('127.0.0.1', 8123)); print('ready', flush=True)
c, _ = s.accept(); data = b''
while (d := c.recv(65536)): data += d
c.sendall(b'got %d' % len(data)); c.close()";
    let mut attached = lab.service.exec(ExecRequest::argv(["/usr/bin/python3", "-c", server])).await.unwrap();
    let mut out = Out::default();
    until(&mut attached, &mut out, "ready").await;
    let mut port = lab.service.port_dial(8123).await.unwrap();
    for _ in 0..10 {
        port.input.send(Bytes::from(vec![1; 100_000])).await.unwrap();
    }
    drop(port.input);
    let mut answer = Vec::new();
    while let Some(bytes) = port.output.recv().await {
        answer.extend_from_slice(&bytes.unwrap());
    }
    assert_eq!(answer, b"got 1000000");
}
