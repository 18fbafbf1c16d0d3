//! What a lab machine is made of: QEMU and a kernel from Debian's backports, unpacked, and an initramfs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{debian::sources, step};

/// Changes when what is below does, so that an older lab is not taken for this one.
const VERSION: &str = "1";
/// From the backports: QEMU of the release itself crashes its guests.
const BACKPORTS: [&str; 4] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];
/// What QEMU links that a small machine may lack.
const LIBRARIES: [&str; 12] = [
    "libcapstone4",
    "libdaxctl1",
    "libfdt1",
    "libibverbs1",
    "libndctl6",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpmem1",
    "libpixman-1-0",
    "librdmacm1",
    "libslirp0",
    "libvdeplug2",
];
/// The kernel's metapackage: it names the newest.
const KERNEL: &str = "linux-image-amd64";
/// In the initramfs, with all that they need.
const MODULES: [&str; 5] = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_rng"];
const TOOLS: [&str; 8] = ["sh", "mount", "mkdir", "insmod", "stty", "cat", "ip", "switch_root"];

/// Where everything is.
pub struct Material {
    /// Unpacked packages.
    pub root: PathBuf,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
}

/// Made at the first call, kept for the next.
pub fn ensure() -> Result<Material> {
    let top = step::root().join("target/lab");
    let made = top.join(format!("made-{VERSION}"));
    if !made.is_file() {
        let _ = fs::remove_dir_all(&top);
        make(&top)?;
        fs::write(&made, "")?;
    }
    let release = release(&top)?;
    Ok(Material {
        kernel: top.join("root/boot").join(format!("vmlinuz-{release}")),
        initramfs: top.join("initramfs.cpio"),
        root: top.join("root"),
    })
}

fn make(top: &Path) -> Result<()> {
    println!("lab: fetching QEMU and a kernel from Debian's backports");
    let (debs, root) = (top.join("debs"), top.join("root"));
    for dir in ["debs", "root", "apt/lists/partial", "apt/cache/archives/partial"] {
        fs::create_dir_all(top.join(dir))?;
    }
    let suite = sources::this_suite()?;
    fs::write(top.join("apt/sources.list"), sources::with_backports(&suite)?)?;
    let apt = |program: &str| {
        let mut apt = Command::new(program);
        apt.current_dir(&debs).env("LC_ALL", "C");
        for (key, value) in [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            apt.arg("-o").arg(format!("{key}={}", top.join("apt").join(value).display()));
        }
        apt.args(["-q", "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Acquire::Retries=3"]);
        // The folder is root's alone.
        apt.args(["-o", "APT::Sandbox::User=root"]);
        apt
    };
    step::output(apt("apt-get").arg("update"))?;
    let depends =
        step::output(apt("apt-cache").args(["depends", &format!("{KERNEL}={}", kernel_version(&apt)?)]))?;
    let kernel = depends.lines().find_map(|l| l.trim().strip_prefix("Depends: linux-image-"));
    let kernel = format!("linux-image-{}", kernel.context("the kernel's metapackage names no kernel")?);
    let backports = BACKPORTS.iter().map(|p| format!("{p}/{suite}-backports"));
    step::output(apt("apt-get").arg("download").args(backports).args(LIBRARIES).arg(kernel))?;
    for deb in fs::read_dir(&debs)? {
        step::output(Command::new("dpkg-deb").arg("--extract").arg(deb?.path()).arg(&root))?;
    }
    fs::remove_dir_all(&debs)?;
    initramfs(top)
}

/// The newest version of the kernel's metapackage: that of the backports.
fn kernel_version(apt: &impl Fn(&str) -> Command) -> Result<String> {
    let listed = step::output(apt("apt-cache").args(["madison", KERNEL]))?;
    let first = listed.lines().find(|l| l.contains("-backports"));
    let version = first.and_then(|l| l.split('|').nth(1)).map(|v| v.trim().to_owned());
    version.with_context(|| format!("Debian's backports have no {KERNEL}"))
}

/// Of the unpacked kernel.
fn release(top: &Path) -> Result<String> {
    let mut entries = fs::read_dir(top.join("root/lib/modules"))?;
    let entry = entries.next().context("no kernel was unpacked")??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

/// busybox, the modules that reach this machine's files, and the script that does.
fn initramfs(top: &Path) -> Result<()> {
    let (root, release) = (top.join("root"), release(top)?);
    step::output(Command::new("depmod").arg("-b").arg(&root).arg(&release))?;
    let tree = top.join("initramfs");
    for dir in ["bin", "modules", "dev", "proc", "sys"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).context("busybox (Debian package busybox-static)")?;
    for tool in TOOLS {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(tool))?;
    }
    let mut order = Vec::new();
    for module in MODULES {
        let mut modprobe = Command::new("modprobe");
        modprobe.arg("-d").arg(&root).args(["-S", &release, "--show-depends", module]);
        for line in step::output(&mut modprobe)?.lines() {
            let Some(path) = line.trim().strip_prefix("insmod ") else { continue };
            let path = Path::new(path.trim());
            let name = path.file_stem().context("a module without a name")?.to_string_lossy().into_owned();
            if !order.contains(&name) {
                unpack_module(path, &tree.join("modules").join(&name))?;
                order.push(name);
            }
        }
    }
    fs::write(tree.join("modules/order"), order.join("\n") + "\n")?;
    fs::write(tree.join("init"), include_str!("init.sh"))?;
    let pack = "chmod 755 init && find . | busybox cpio -o -H newc > ../initramfs.cpio 2>/dev/null";
    step::output(Command::new("sh").args(["-c", pack]).current_dir(&tree))?;
    Ok(())
}

/// `x.ko.xz` into `x.ko`.
fn unpack_module(from: &Path, to: &Path) -> Result<()> {
    let out = Command::new("xz").arg("-dc").arg(from).output().context("xz (Debian package xz-utils)")?;
    if !out.status.success() {
        anyhow::bail!("xz: {}: {}", from.display(), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(fs::write(to, out.stdout)?)
}
