//! The fake agent as a program; see `conductor_tests::fake`.

fn main() {
    conductor_tests::fake::main();
}
