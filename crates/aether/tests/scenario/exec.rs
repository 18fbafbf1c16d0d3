//! Scenarios of commands: output, exit, timeouts, input, terminals.

use std::time::Instant;

use api::{
    Code,
    arrow::Chronus,
    exec::{AttachQuery, ExecRequest, ExitReason, PtySize, SignalRequest, Stdin},
    frame::ClientFrame,
    limit,
};
use bytes::Bytes;

use crate::lab::{Lab, Out, assert_error, collect, take, until};

pub async fn case_01_03_background_child_holds_the_pipe(lab: &Lab) {
    for _ in 0..2 {
        let out = lab.sh("sleep 300 & echo started").await;
        assert_eq!((out.code(), out.text().as_str()), (0, "started\n"));
    }
    assert_eq!(lab.ok("pgrep -c sleep").await.trim(), "2", "they live on");
    // A background child that goes on writing is neither blocked nor killed by SIGPIPE.
    let out = lab.sh("(sleep 0.2; i=0; while [ $i -lt 40 ]; do head -c 10000 /dev/zero; i=$((i+1)); done; echo > /tmp/done) & echo x").await;
    assert_eq!(out.text(), "x\n");
    lab.ok("while [ ! -e /tmp/done ]; do sleep 0.05; done").await;
    // One that writes without end does not hold the exit back.
    let out = lab.sh("yes & sleep 0.1; exit 3").await;
    assert_eq!(out.code(), 3);
    lab.ok("pkill yes").await;
}

pub async fn case_04_a_stuck_exec_freezes_nobody(lab: &Lab) {
    let stuck = lab.service.exec(ExecRequest::shell("yes")).await.unwrap();
    let many = (0..50).map(|_| lab.sh("true"));
    for out in many {
        assert_eq!(out.await.code(), 0);
    }
    assert_eq!(lab.service.exec_list().await.unwrap().iter().filter(|e| e.exit.is_none()).count(), 1);
    lab.service.exec_signal(stuck.exec_id.clone(), SignalRequest { signal: 9, tree: true }).await.unwrap();
    assert_eq!(collect(stuck).await.reason(), ExitReason::Signal);
}

pub async fn case_05_fast_commands_lose_nothing(lab: &Lab) {
    for _ in 0..500 {
        let out = lab.run(ExecRequest::argv(["echo", "running"])).await;
        assert_eq!((out.text().as_str(), out.code()), ("running\n", 0));
    }
    // More than a pipe holds, all of it before the exit.
    let out = lab.sh("head -c 3000000 /dev/zero; head -c 200000 /dev/zero >&2").await;
    assert_eq!((out.stdout.len(), out.stderr.len()), (3_000_000, 200_000));
}

pub async fn case_07_last_line(lab: &Lab) {
    assert_eq!(lab.sh("printf abc").await.text(), "abc");
    for _ in 0..150 {
        let request = ExecRequest { pty: Some(PtySize::default()), ..ExecRequest::argv(["echo", "0"]) };
        assert_eq!(lab.run(request).await.text(), "0\r\n");
    }
}

pub async fn case_09_10_bytes_are_exact(lab: &Lab) {
    let out = lab.sh(r"printf '\342'; sleep 0.05; printf '\211'; sleep 0.05; printf '\244'").await;
    assert_eq!(out.stdout, "≤".as_bytes());
    let out = lab.sh(r"printf '\303\050\377\000'").await;
    assert_eq!(out.stdout, b"\xc3\x28\xff\0");
}

pub async fn case_13_not_found_and_not_executable(lab: &Lab) {
    let out = lab.run(ExecRequest::argv(["nosuch"])).await;
    assert_eq!((out.code(), out.reason()), (127, ExitReason::NotStarted));
    assert_eq!(out.errors(), "dsec: nosuch: command not found\n");
    let out = lab.run(ExecRequest::argv(["/etc/passwd"])).await;
    assert_eq!((out.code(), out.errors().as_str()), (126, "dsec: /etc/passwd: permission denied\n"));
    lab.ok(
        "printf '#!/no/interpreter\n' > /tmp/script; printf 'x' > /tmp/text; chmod +x /tmp/script /tmp/text",
    )
    .await;
    let out = lab.run(ExecRequest::argv(["/tmp/script"])).await;
    assert!(out.code() == 127 && out.errors().contains("interpreter"), "{out:?}");
    assert_eq!(lab.run(ExecRequest::argv(["/tmp/text"])).await.code(), 126);
    let cwd = |cwd: &str| ExecRequest { cwd: Some(cwd.into()), ..ExecRequest::argv(["pwd"]) };
    assert_error(lab.service.exec(cwd("/nosuch")).await, Code::NotFound, "`/nosuch`");
    assert_error(lab.service.exec(cwd("/etc/passwd")).await, Code::InvalidArgument, "`/etc/passwd`");
    assert_eq!(lab.run(cwd("/usr")).await.text(), "/usr\n");
    // Nothing of the agent's can be reached by a descriptor (CVE-2024-21626).
    for fd in 0..64 {
        let request = ExecRequest { cwd: Some(format!("/proc/self/fd/{fd}")), ..ExecRequest::argv(["pwd"]) };
        assert!(lab.service.exec(request).await.is_err(), "{fd}");
    }
    let user = ExecRequest { user: Some("bob".into()), ..ExecRequest::argv(["id"]) };
    assert_error(lab.service.exec(user).await, Code::InvalidArgument, "`bob`");
}

pub async fn case_14_15_argv_and_env_verbatim(lab: &Lab) {
    let out = lab.run(ExecRequest::argv(["/usr/bin/python3", "-c", "print('hi there')"])).await;
    assert_eq!(out.text(), "hi there\n");
    let b = "a'b\"c$HOME`id`\n2nd";
    let env = [("A", "hello world"), ("B", b), ("C", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let out = lab.run(ExecRequest { env, ..ExecRequest::argv(["printenv", "A", "B", "C"]) }).await;
    assert_eq!(out.text(), format!("hello world\n{b}\n\n"));
}

pub async fn case_17_huge_commands(lab: &Lab) {
    let argv = ["printf", "%s"].into_iter().map(str::to_owned).chain((0..16).map(|_| "x".repeat(64 << 10)));
    assert_eq!(lab.run(ExecRequest::argv(argv)).await.stdout.len(), 1 << 20);
    let text = format!("echo \"$0 $#\"; : '{}'; cat; echo é$LINENO >&2; exit 7", "é\n".repeat(100_000));
    let request = ExecRequest { stdin: Stdin::Data("in".into()), ..ExecRequest::shell(text) };
    let out = lab.run(request).await;
    assert_eq!((out.text().as_str(), out.code()), ("/bin/sh 0\nin", 7), "{}", out.errors());
    // What the kernel refuses is said, not hung.
    let argv = std::iter::once("true".to_owned()).chain((0..700_000).map(|_| "x".to_owned()));
    let out = lab.run(ExecRequest::argv(argv)).await;
    assert!(out.code() == 126 && out.errors().contains("argument list too long"), "{out:?}");
}

pub async fn case_18_own_signal_is_no_timeout(lab: &Lab) {
    let out = lab.run(ExecRequest { timeout_ms: Some(30_000), ..ExecRequest::shell("kill -TERM $$") }).await;
    let exit = out.exit.unwrap();
    assert_eq!((exit.code, exit.reason, exit.signal), (143, ExitReason::Signal, Some(15)));
}

pub async fn case_21_22_25_timeout_kills_the_tree(lab: &Lab) {
    for text in [
        "echo A; sleep 301 & sleep 301; :",
        "trap '' TERM; echo A; setsid sleep 301 & sleep 301",
        "echo A; (setsid sh -c 'sleep 301 & sleep 301' &) ; sleep 301",
    ] {
        let out = lab.run(ExecRequest { timeout_ms: Some(400), ..ExecRequest::shell(text) }).await;
        assert_eq!((out.code(), out.reason(), out.text().as_str()), (137, ExitReason::Timeout, "A\n"));
        assert_eq!(lab.sh("pgrep -f '^sleep 301'").await.code(), 1, "nothing is left of {text}");
    }
    let fast = lab.run(ExecRequest { timeout_ms: Some(60_000), ..ExecRequest::shell("exit 5") }).await;
    assert_eq!((fast.code(), fast.reason()), (5, ExitReason::Exited));
}

pub async fn case_34_35_36_stdin(lab: &Lab) {
    assert_eq!(lab.sh("cat; echo done").await.text(), "done\n");
    let stream = |text: &str| ExecRequest { stdin: Stdin::Stream, ..ExecRequest::shell(text) };
    let attached = lab.service.exec(stream("wc -l; sleep 0.1; echo after")).await.unwrap();
    attached.input.send(ClientFrame::Stdin(Bytes::from_static(b"a\nb"))).await.unwrap();
    attached.input.send(ClientFrame::StdinClose).await.unwrap();
    assert_eq!(collect(attached).await.text(), "1\nafter\n");
    // 50 MiB, through a process that writes as much as it reads: input must not block acknowledgements for good.
    for (text, expected) in [("wc -c", None), ("cat", Some(50 << 20))] {
        let mut attached = lab.service.exec(stream(text)).await.unwrap();
        let input = attached.input.clone();
        let feeding = tokio::spawn(async move {
            let chunk = Bytes::from(vec![7; 256 << 10]);
            for _ in 0..200 {
                input.send(ClientFrame::Stdin(chunk.clone())).await.unwrap();
            }
            input.send(ClientFrame::StdinClose).await.unwrap();
        });
        let mut out = Out::default();
        while !take(&mut attached, &mut out).await {}
        feeding.await.unwrap();
        match expected {
            Some(bytes) => assert_eq!(out.stdout.len(), bytes),
            None => assert_eq!(out.text(), "52428800\n"),
        }
        assert_eq!((out.code(), out.dropped), (0, 0));
    }
    let data: Vec<u8> = (0..=255u8).cycle().take(100_000).collect();
    let request = ExecRequest { stdin: Stdin::Data(data.clone().into()), ..ExecRequest::argv(["cat"]) };
    assert_eq!(lab.run(request).await.stdout, data);
    // A process that never reads is not a problem, nor is one that closes.
    let request = ExecRequest {
        stdin: Stdin::Data(vec![0; 1 << 20].into()),
        ..ExecRequest::shell("exec <&-; sleep 0.1; echo ok")
    };
    assert_eq!(lab.run(request).await.text(), "ok\n");
    assert_eq!(lab.ok("echo x > /dev/stderr; echo y > /dev/stdout").await, "y\n");
    assert_eq!(lab.as_user("ann", "echo y > /dev/stdout").await.text(), "y\n");
}

pub async fn case_38_39_terminal(lab: &Lab) {
    let pty = |rows, cols, text: &str| ExecRequest {
        pty: Some(PtySize { rows, cols }),
        stdin: Stdin::Stream,
        ..ExecRequest::shell(text)
    };
    assert_eq!(lab.run(pty(43, 132, "stty size")).await.text(), "43 132\r\n");
    assert_eq!(lab.run(pty(65535, 65535, "stty size")).await.text(), "65535 65535\r\n");
    assert_eq!(lab.run(pty(0, 0, "stty size")).await.code(), 0);
    let request = ExecRequest {
        pty: Some(PtySize::default()),
        ..ExecRequest::shell("stty size; tty; cat; echo $TERM")
    };
    let out = lab.run(request).await;
    assert!(out.text().starts_with("24 80\r\n/dev/pts/"), "{out:?}");
    assert!(out.text().ends_with("xterm-256color\r\n"), "no stdin is end-of-file on a terminal too: {out:?}");

    let mut attached = lab
        .service
        .exec(pty(24, 80, "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"))
        .await
        .unwrap();
    let mut out = Out::default();
    until(&mut attached, &mut out, "ready").await;
    attached.input.send(ClientFrame::Resize(PtySize { rows: 30, cols: 100 })).await.unwrap();
    while !take(&mut attached, &mut out).await {}
    assert!(out.text().contains("30 100"), "{out:?}");

    let mut attached = lab.service.exec(pty(24, 80, "echo go; exec sleep 100")).await.unwrap();
    let mut out = Out::default();
    until(&mut attached, &mut out, "go").await;
    attached.input.send(ClientFrame::Stdin(Bytes::from_static(b"\x03"))).await.unwrap();
    while !take(&mut attached, &mut out).await {}
    assert_eq!(out.exit.unwrap().signal, Some(2));

    let user = ExecRequest {
        user: Some("ann".into()),
        ..pty(24, 80, "tty > /tmp/tty.$$; exec < $(cat /tmp/tty.$$); tty; ps -o tpgid= -p $$")
    };
    let out = lab.run(user).await;
    assert!(out.code() == 0 && out.text().starts_with("/dev/pts/"), "{out:?}");
    // Interactive, with job control.
    let attached = lab
        .service
        .exec(ExecRequest {
            pty: Some(PtySize::default()),
            stdin: Stdin::Stream,
            ..ExecRequest::argv(["bash", "-i"])
        })
        .await
        .unwrap();
    attached
        .input
        .send(ClientFrame::Stdin(Bytes::from_static(b"sleep 50 &\njobs\nkill %1\nexit 4\n")))
        .await
        .unwrap();
    let out = collect(attached).await;
    assert!(out.code() == 4 && out.text().contains("[1]+  Running"), "{out:?}");
    assert!(!out.text().contains("no job control"), "{out:?}");
}

pub async fn case_41_no_zombies(lab: &Lab) {
    for _ in 0..60 {
        assert_eq!(lab.sh("sleep 0.05 & (sleep 0.05 &) ; true").await.code(), 0);
    }
    lab.sleep(1000).await;
    assert_eq!(lab.sh("ps -eo stat= | grep -c Z").await.text(), "0\n");
}

pub async fn case_81_82_users_and_defaults(lab: &Lab) {
    assert_eq!(
        lab.ok("echo $HOME $USER $LOGNAME $SHELL $LANG $FROM_IMAGE ${TERM-none}; pwd; umask; ulimit -c")
            .await,
        "/root root root /bin/bash C.UTF-8 yes none\n/root\n0022\n0\n"
    );
    assert_eq!(
        lab.as_user("ann", "echo $HOME $USER; pwd; id -u; id -G").await.text(),
        "/home/ann ann\n/home/ann\n1000\n1000 1234\n"
    );
    assert_eq!(
        lab.as_user("4242:7", "echo $HOME; pwd; id -u; id -g; id -G").await.text(),
        "/\n/\n4242\n7\n7\n"
    );
    assert_eq!(lab.ok("/usr/bin/python3 -c 'print(\"é中\")'").await, "é中\n");
    let env = [("HOME".to_owned(), "/x".to_owned()), ("PATH".to_owned(), "/nowhere".to_owned())].into();
    let out = lab.run(ExecRequest { env, ..ExecRequest::argv(["true"]) }).await;
    assert_eq!(out.code(), 127, "the lookup uses the exec's own PATH");
}

pub async fn attach_ack_and_backpressure(lab: &Lab) {
    // Nobody acknowledges: the process stops when the log is full; nothing is lost when a client comes back.
    let first = lab.service.exec(ExecRequest::shell("seq 1 400000; echo end")).await.unwrap();
    let id = first.exec_id.clone();
    drop(first);
    lab.sleep(500).await;
    let info = lab.service.exec_inspect(id.clone()).await.unwrap();
    assert!(info.exit.is_none() && info.stdout_bytes == limit::AETHER_BUFFER_BYTES as u64, "{info:?}");
    let out = collect(lab.service.exec_attach(id.clone(), AttachQuery::default()).await.unwrap()).await;
    assert!(out.text().starts_with("1\n2\n") && out.text().ends_with("400000\nend\n"));
    // Acknowledged bytes are gone, and that is said.
    let again = collect(lab.service.exec_attach(id.clone(), AttachQuery::default()).await.unwrap()).await;
    assert_eq!(again.dropped + again.stdout.len() as u64, out.stdout.len() as u64);
    assert!(again.dropped > 0 && again.code() == 0);
    // In the middle, without a client that acknowledges.
    let first = lab.service.exec(ExecRequest::shell("printf 0123456789")).await.unwrap();
    lab.sleep(100).await;
    let from = AttachQuery { stdout_offset: 4, stderr_offset: 0 };
    let mut attached = lab.service.exec_attach(first.exec_id.clone(), from).await.unwrap();
    let frame = attached.output.recv().await.unwrap();
    assert!(format!("{frame:?}").contains("456789"), "{frame:?}");
    let unknown = lab.service.exec_attach(api::ExecId::new(), AttachQuery::default()).await;
    assert_error(unknown, Code::NotFound, "unknown");
    // Only so many are remembered.
    for _ in 0..limit::EXECS_REMEMBERED_MAX + 5 {
        lab.sh("true").await;
    }
    assert_error(lab.service.exec_inspect(id).await, Code::NotFound, "forgotten");
    assert!(lab.service.exec_list().await.unwrap().len() <= limit::EXECS_REMEMBERED_MAX + 1);
}

pub async fn signals(lab: &Lab) {
    let mut attached = lab
        .service
        .exec(ExecRequest::shell("trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done"))
        .await
        .unwrap();
    let mut out = Out::default();
    until(&mut attached, &mut out, "ready").await;
    attached.input.send(ClientFrame::Signal(10)).await.unwrap();
    until(&mut attached, &mut out, "usr1").await;
    lab.service
        .exec_signal(attached.exec_id.clone(), SignalRequest { signal: 15, tree: true })
        .await
        .unwrap();
    let id = attached.exec_id.clone();
    while !take(&mut attached, &mut out).await {}
    assert_eq!(out.exit.unwrap().signal, Some(15));
    let late = lab.service.exec_signal(id, SignalRequest { signal: 9, tree: false }).await;
    late.expect("an ended one takes it in silence");
    // What outlived its exec can still be ended by the exec's id.
    let attached = lab.service.exec(ExecRequest::shell("setsid sleep 302 & echo")).await.unwrap();
    let id = attached.exec_id.clone();
    collect(attached).await;
    lab.service.exec_signal(id, SignalRequest { signal: 9, tree: true }).await.unwrap();
    lab.ok("while pgrep -f '^sleep 302'; do sleep 0.02; done").await;
    assert!(
        lab.service.exec_signal(api::ExecId::new(), SignalRequest { signal: 9, tree: true }).await.is_err()
    );
}

pub async fn idempotency(lab: &Lab) {
    let request = ExecRequest {
        idempotency_key: Some("k".into()),
        ..ExecRequest::shell("echo run >> /tmp/runs; echo out")
    };
    let (a, b) = tokio::join!(lab.service.exec(request.clone()), lab.service.exec(request.clone()));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.exec_id, b.exec_id);
    let start = Instant::now();
    assert_eq!(collect(a).await.text(), "out\n");
    let again = lab.service.exec(request).await.unwrap();
    assert_eq!(again.exec_id, b.exec_id);
    assert_eq!(lab.ok("cat /tmp/runs").await, "run\n");
    println!("idempotency: {:?}", start.elapsed());
}
