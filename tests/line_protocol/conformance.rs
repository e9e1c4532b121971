//! The suite that every codec passes.

use mini_broker::protocol::line::Limits;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::peer::Peer;

/// Requests, good and bad, that a random session is made of.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let fixed = prop::sample::select(vec![
        &b"PUT orders hello world\n"[..],
        b"PUT orders:key {\"a\":1}\r\n",
        b"PUT refused x\n",
        b"PUT orders\n",
        b"PRODUCE orders 3 4\nkeyval\n\n",
        b"PRODUCE orders/2 -1 0 ts=5\n\n",
        b"PRODUCE refused -1 5\nPING\n\n",
        b"PRODUCE orders -1 5 foo=1\nPING\n\n",
        b"PRODUCE orders -1 30\naaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n\n",
        b"BATCH orders 2 20\n\xff\xff\xff\xff\0\0\0\x01a\0\0\0\x01b\0\0\0\x02cd\n",
        b"BATCH orders 1 8\n\0\0\0\0\0\0\0\0\n",
        b"BATCH orders 1 32\n\0\0\0\0\0\0\0\0PING\nPING\nPING\nPING\n1234\n",
        b"READ orders 0 as=json\n",
        b"FETCH orders 0\n",
        b"TAIL orders as=tsv\n",
        b"TAIL orders/*\nSTOP\n",
        b"STOP\n",
        b"PING\r\n",
        b"\n",
        b"\r\n",
        b"  \n",
        b"# note\n",
        b"HELP\n",
        b"READ orders x\n",
        b"CREATE t partitions=2 a=b\n",
        b"ALTER t a=b\n",
        b"PARTITIONS t 4\n",
        b"TRIM t/1 5\n",
        b"CONSUME g t\n",
        b"CONSUME g t as=json ack_wait=5\n",
        b"ACK 0 5\n",
        b"ACK 0 500\n",
        b"COMMIT g t/0 5\n",
        b"GROUPS\n",
    ]);
    let rare = prop::sample::select(vec![
        &b"QUIT\n"[..],
        b"GET / HTTP/1.1\r\n",
        b"PRODUCE orders 1 x\n",
        b"PRODUCE orders 0 0\nx",
        b"BATCH orders 3 8\n\0\0\0\0\0\0\0\0\n",
        b"PUT orders xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
        b"PUT orders xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
        b"PUT orders xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
    ]);
    let garbage = prop::collection::vec(
        prop_oneof![4 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b' '), 1 => Just(b'\r')],
        0..40,
    );
    prop_oneof![
        12 => fixed.prop_map(<[u8]>::to_vec),
        1 => rare.prop_map(<[u8]>::to_vec),
        1 => garbage,
    ]
}

/// So small that random sessions meet every boundary.
const SMALL: Limits = Limits {
    line_bytes_max: 64,
    record_bytes_max: 16,
    batch_bytes_max: 24,
};

fn feed<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (String, Vec<String>, bool) {
    let mut peer = Peer::with_limits(SMALL);
    for chunk in chunks {
        peer.turn(chunk);
    }
    (peer.text(), peer.asked, peer.is_closed)
}

/// A runner of random cases; prints its seed where a case fails, and takes it back from `SEED`.
fn runner(cases: u32) -> TestRunner {
    let seed: u64 = match std::env::var("SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    println!("SEED={seed}");
    let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

#[test]
fn byte_by_byte_is_all_at_once_is_any_split() {
    let session = (
        prop::collection::vec(request(), 1..20),
        prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    );
    let claim = |(requests, cuts): (Vec<Vec<u8>>, Vec<prop::sample::Index>)| {
        let bytes = requests.concat();
        let whole = feed([bytes.as_slice()]);
        prop_assert_eq!(&feed(bytes.chunks(1)), &whole);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        prop_assert_eq!(
            &feed(cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]])),
            &whole
        );
        // Sequential: each request after the reply to the one before.
        prop_assert_eq!(&feed(requests.iter().map(Vec::as_slice)), &whole);
        Ok(())
    };
    runner(500).run(&session, claim).unwrap();
}

#[test]
fn garbage_never_panics() {
    let claim = |bytes: Vec<u8>| {
        let whole = feed([bytes.as_slice()]);
        prop_assert_eq!(feed(bytes.chunks(3)), whole);
        let behind_a_line = [&b"PING\n"[..], &bytes].concat();
        let whole = feed([behind_a_line.as_slice()]);
        prop_assert_eq!(feed(behind_a_line.chunks(1)), whole);
        Ok(())
    };
    runner(500)
        .run(&prop::collection::vec(any::<u8>(), 0..2000), claim)
        .unwrap();
}
