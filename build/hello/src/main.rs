fn main() { println!("{}", (1..=20u64).product::<u64>()); }
