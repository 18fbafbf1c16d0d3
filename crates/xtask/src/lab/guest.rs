//! One run of a lab machine: a job folder that both sides see, a serial line for what the command prints.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::material::Material;
use crate::step;

pub struct Job {
    /// For `sh -c`, at the top of the repository.
    pub command: String,
    pub memory_mib: u32,
    pub time_max: Duration,
}

/// The exit code of the job's command; each line that it prints goes to our output and to `each`.
pub fn run(material: &Material, job: &Job, mut each: impl FnMut(&str)) -> Result<i32> {
    let dir = step::root().join("target/lab").join(format!("job-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("command"), &job.command)?;
    fs::write(dir.join("run.sh"), script(material))?;
    let ran = emulate(material, job, &dir, &mut each);
    let code = fs::read_to_string(dir.join("code")).ok();
    let console = fs::read_to_string(dir.join("console")).unwrap_or_default();
    fs::remove_dir_all(&dir)?;
    ran?;
    let tail: Vec<&str> = console.lines().rev().take(20).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    let code = code.with_context(|| format!("the machine ended before its job did; its console:\n{tail}"))?;
    code.trim().parse().with_context(|| format!("the job's exit code is {code:?}"))
}

/// What the guest runs: the kernel's modules found, the command, its exit code.
fn script(material: &Material) -> String {
    let root = material.root.display();
    let top = step::root();
    format!(
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root\n\
         mkdir -p /lib/modules && mount --bind {root}/lib/modules /lib/modules\n\
         cd {}\n\
         {{ sh /run/job/command; echo $? > /run/job/code; }} 2>&1 < /dev/null | cat > /dev/ttyS1\n\
         sync\n\
         echo o > /proc/sysrq-trigger\n\
         sleep 100\n",
        top.display()
    )
}

fn emulate(material: &Material, job: &Job, dir: &Path, each: &mut impl FnMut(&str)) -> Result<()> {
    let root = &material.root;
    let mut qemu = Command::new(root.join("usr/bin/qemu-system-x86_64"));
    let libraries = ["usr/lib", "lib"].map(|d| root.join(d).join("x86_64-linux-gnu"));
    qemu.env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        qemu.arg("-L").arg(root.join(data));
    }
    qemu.args(["-M", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-smp", "2"]);
    qemu.args(["-m", &job.memory_mib.to_string(), "-nodefaults", "-no-user-config", "-display", "none"]);
    qemu.arg("-no-reboot").arg("-kernel").arg(&material.kernel).arg("-initrd").arg(&material.initramfs);
    let console = format!("file:{}", dir.join("console").display());
    qemu.args(["-serial", &console, "-serial", "stdio", "-device", "virtio-rng-pci"]);
    let shares = [("host", Path::new("/"), ",readonly=on,multidevs=remap"), ("job", dir, "")];
    for (name, path, options) in shares {
        let path = path.display();
        qemu.args(["-fsdev", &format!("local,id={name},path={path},security_model=none{options}")]);
        qemu.args(["-device", &format!("virtio-9p-pci,fsdev={name},mount_tag={name}")]);
    }
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 lsm=landlock,yama,apparmor apparmor=1"]);
    let log = fs::File::create(dir.join("qemu.log"))?;
    qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = qemu.spawn().context("cannot start QEMU")?;
    let lines = child.stdout.take().map(lines_of).context("QEMU has no output")?;
    let deadline = Instant::now() + job.time_max;
    let in_time = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                writeln!(std::io::stdout(), "{line}")?;
                each(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break true,
            Err(mpsc::RecvTimeoutError::Timeout) => break false,
        }
    };
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    if !in_time {
        bail!("the machine ran for over {} s and was ended", job.time_max.as_secs());
    }
    if !status.success() {
        bail!("QEMU ended with {status}: {}", fs::read_to_string(dir.join("qemu.log")).unwrap_or_default());
    }
    Ok(())
}

/// Lines as they come, until the end.
fn lines_of(from: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}
