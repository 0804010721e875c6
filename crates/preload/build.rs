//! The linking of the library: it needs nothing but libc, is never unloaded, and has no executable stack.

fn main() {
    for argument in
        ["-static-libgcc", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,-z,now", "-Wl,--gc-sections", "-lc"]
    {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
