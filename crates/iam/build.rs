//! The migrations are compiled in: build again when one changes.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
