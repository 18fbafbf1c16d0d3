//! `network: egress`: a veth pair, one address, NAT on the way out, and nothing else.
//!
//! ```text
//! sandbox  eth0 10.213.x.y/32, default route by 169.254.1.1 on the link
//! node     dsec<slot>, a route to 10.213.x.y/32; nftables table `inet dsec`:
//!          out by masquerade; never to the node itself, to another sandbox, or to link-local (metadata) addresses;
//!          4,096 connections at once, for the node's table of them is everybody's
//! ```
//! Addresses follow from the slot, so there is nothing to allocate or to leak. Each end is told the other's link address
//! and nobody asks by ARP, which a node without a default route would not answer for the gateway. Done by `ip -batch` and `nft`:
//! two programs that every Debian has, off the fast path (`network: none` is the default and costs nothing).

use std::{
    fs, io,
    io::Write,
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use super::protocol::Process;

const GATEWAY: &str = "169.254.1.1";

/// Rules of every egress sandbox of the machine, made anew each time: adding a table that is there is no error.
const RULES: &str = r#"
table inet dsec
delete table inet dsec
table inet dsec {
    set tracked {
        type ipv4_addr
        flags dynamic
        size 65536
    }
    chain to_node {
        type filter hook input priority 0; policy accept;
        iifname "dsec*" drop
    }
    chain through {
        type filter hook forward priority 0; policy accept;
        iifname "dsec*" oifname "dsec*" drop
        iifname "dsec*" ip daddr 169.254.0.0/16 drop
        iifname "dsec*" ip saddr != 10.213.0.0/16 drop
        iifname "dsec*" meta nfproto ipv6 drop
        iifname "dsec*" ct state new add @tracked { ip saddr ct count over 4096 } drop
        oifname "dsec*" ct state != { established, related } drop
    }
    chain out {
        type nat hook postrouting priority 100; policy accept;
        ip saddr 10.213.0.0/16 oifname != "dsec*" masquerade
    }
}
"#;

fn interface(slot: u32) -> String {
    format!("dsec{slot}")
}

/// The sandbox's address.
pub(crate) fn address(slot: u32) -> Ipv4Addr {
    let [_, _, high, low] = slot.to_be_bytes();
    Ipv4Addr::new(10, 213, high, low)
}

/// Of the node's end and of the sandbox's: local ones, only ever seen on their own link.
fn link_addresses(slot: u32) -> (String, String) {
    let [_, _, high, low] = slot.to_be_bytes();
    let of = |end: u8| format!("02:d5:ec:{end:02x}:{high:02x}:{low:02x}");
    (of(0), of(1))
}

/// Gives the sandbox its way out. On an error nothing is left.
pub(crate) fn attach(slot: u32, init: Process) -> io::Result<()> {
    let link = interface(slot);
    let address = address(slot);
    let (near, far) = link_addresses(slot);
    let done = || -> io::Result<()> {
        run("nft", &["-f", "-"], RULES)?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        let pid = init.pid;
        let pair = format!(
            "link add {link} address {near} type veth peer name eth0 address {far} netns {pid}\nlink set {link} up\n"
        );
        run("ip", &["-batch", "-"], &pair)?;
        // A sandbox answers and asks under its own address alone.
        fs::write(format!("/proc/sys/net/ipv4/conf/{link}/rp_filter"), "1")?;
        let to_it = format!(
            "route add {address}/32 dev {link}\nneigh add {address} lladdr {far} dev {link} nud permanent\n"
        );
        run("ip", &["-batch", "-"], &to_it)?;
        let net = format!("--net=/proc/{pid}/ns/net");
        let inside = format!(
            "addr add {address}/32 dev eth0\nlink set eth0 up\nroute add {GATEWAY} dev eth0\nneigh add {GATEWAY} lladdr {near} dev eth0 nud permanent\nroute add default via {GATEWAY} dev eth0\n"
        );
        run("nsenter", &[&net, "ip", "-batch", "-"], &inside)
    };
    done().inspect_err(|_| {
        let _ = detach(slot);
    })
}

/// Takes it away. Idempotent.
pub(crate) fn detach(slot: u32) -> io::Result<()> {
    let link = interface(slot);
    if !fs::exists(format!("/sys/class/net/{link}"))? {
        return Ok(());
    }
    match run("ip", &["link", "delete", &link], "") {
        // It goes by itself with the network namespace: that may have been first.
        Err(_) if !fs::exists(format!("/sys/class/net/{link}"))? => Ok(()),
        done => done,
    }
}

/// Removes the machine's rules, where no sandbox needs them any more.
pub(crate) fn remove_rules() {
    let in_use = fs::read_dir("/sys/class/net")
        .is_ok_and(|links| links.flatten().any(|l| l.file_name().to_string_lossy().starts_with("dsec")));
    if !in_use {
        let _ = run("nft", &["-f", "-"], "table inet dsec\ndelete table inet dsec\n");
    }
}

/// The node's resolvers that can be reached from a sandbox: not those on loopback.
pub(crate) fn resolv_conf() -> String {
    let host = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    reachable_resolvers(&host)
}

fn reachable_resolvers(conf: &str) -> String {
    let reachable = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next() != Some("nameserver")
            || words.next().and_then(|a| a.parse::<std::net::IpAddr>().ok()).is_some_and(|a| !a.is_loopback())
    };
    conf.lines().filter(reachable).map(|line| format!("{line}\n")).collect()
}

fn run(program: &str, args: &[&str], input: &str) -> io::Result<()> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{program}: {e}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_slots_and_differ() {
        assert_eq!(address(0), Ipv4Addr::new(10, 213, 0, 0));
        assert_eq!(address(513), Ipv4Addr::new(10, 213, 2, 1));
        assert_eq!(link_addresses(513), ("02:d5:ec:00:02:01".into(), "02:d5:ec:01:02:01".into()));
        assert!(interface(super::super::slot::SLOTS_MAX).len() < 16);
    }

    #[test]
    fn loopback_resolvers_are_left_out() {
        let conf = "nameserver 127.0.0.53\nnameserver 9.9.9.9\nsearch example\nnameserver ::1\n";
        assert_eq!(reachable_resolvers(conf), "nameserver 9.9.9.9\nsearch example\n");
    }
}
