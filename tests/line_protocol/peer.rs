//! A client's view of the codec: bytes in, replies out, over a broker that answers by a script.

use std::time::Duration;

use mini_broker::api::{
    ApiError, CommitAnswer, CommittedInfo, ConfigSource, ErrorCode, Explanation, GroupInfo,
    IndexStep, PartitionHealth, PartitionInfo, PartitionKey, Payload, RecordState, Request,
    Response, Run, SegmentInfo, TailEvent, TailFrom, TopicInfo, Verdict,
};
use mini_broker::outbox::Outbox;
use mini_broker::protocol::line::{Limits, LineCodec};
use mini_broker::protocol::{Codec, Decoded};
use mini_broker::record::{Record, Records, StoredRecord};

/// A codec, the loop around it, and a broker that answers by a script.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) codec: LineCodec,
    limits: Limits,
    pub(crate) input: Vec<u8>,
    /// What the client has got.
    pub(crate) output: Vec<u8>,
    /// What the broker was asked, in words.
    pub(crate) asked: Vec<String>,
    undecided: Vec<Run>,
    next_offset: i64,
    pub(crate) is_closed: bool,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::new(1024 * 1024))
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self {
            codec: LineCodec::new(limits),
            limits,
            input: Vec::new(),
            output: Vec::new(),
            asked: Vec::new(),
            undecided: Vec::new(),
            next_offset: 0,
            is_closed: false,
        }
    }

    /// One turn of the loop: bytes come, requests are handled, appends are decided.
    pub(crate) fn turn(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while !self.is_closed {
            let rest = &input[at..];
            match self.codec.decode(rest) {
                Decoded::NeedMore => {
                    assert!(
                        rest.len() < self.limits.input_bytes_max(),
                        "the input is bounded"
                    );
                    assert!(
                        matches!(self.codec.decode(rest), Decoded::NeedMore),
                        "asking twice changes nothing"
                    );
                    break;
                }
                Decoded::Skip { used } => {
                    assert!((1..=rest.len()).contains(&used));
                    at += used;
                }
                Decoded::Reply { used } => {
                    assert!((1..=rest.len()).contains(&used));
                    at += used;
                    self.decide();
                    self.encode(Codec::encode_own);
                }
                Decoded::Request { request, used } => {
                    assert!((1..=rest.len()).contains(&used));
                    at += used;
                    self.handle(&request);
                }
            }
        }
        self.input = input[at..].to_vec();
        self.decide();
    }

    fn handle(&mut self, request: &Request<'_>) {
        self.asked.push(format!("{request:?}"));
        if let Request::Append(target, payload) = request {
            match self.append(target.topic, target.partition.unwrap_or(0), payload) {
                Ok(run) => self.undecided.push(run),
                Err(error) => {
                    self.decide();
                    self.encode(|codec, out| codec.encode_refused(&error, out));
                }
            }
            return;
        }
        self.decide();
        if let Request::Ack { offset, .. } = request {
            let error = ApiError::new(ErrorCode::NotAssigned, "not yours");
            let result = if *offset < 100 {
                Ok(CommitAnswer::Done)
            } else {
                Err(&error)
            };
            self.encode(|codec, out| codec.encode_commit(result, out));
            return;
        }
        if let Request::Commit { .. } = request {
            self.encode(|codec, out| codec.encode_commit(Ok(CommitAnswer::Held), out));
            return;
        }
        let response = answer(request);
        let is_tail = matches!(response, Response::Tailing(_) | Response::Consuming);
        self.encode(|codec, out| codec.encode(&response, out));
        if matches!(response, Response::Consuming) {
            for event in [
                TailEvent::Assigned(vec![0, 2]),
                TailEvent::Reset {
                    partition: 2,
                    from: 5,
                    to: 7,
                },
                TailEvent::Inflight(1000),
                TailEvent::Assigned(Vec::new()),
            ] {
                self.codec.encode_tail(&event, &mut self.output);
            }
        }
        if is_tail {
            let event = TailEvent::Records {
                partition: 1,
                records: some_records(),
            };
            assert!(self.codec.tail_form().is_some());
            self.codec.encode_tail(&event, &mut self.output);
            let event = TailEvent::Corrupt {
                partition: 1,
                offset: 5,
                next: 9,
            };
            self.codec.encode_tail(&event, &mut self.output);
        } else {
            assert!(self.codec.tail_form().is_none());
        }
    }

    fn append(
        &mut self,
        topic: &[u8],
        partition: u32,
        payload: &Payload<'_>,
    ) -> Result<Run, ApiError> {
        if topic == b"refused" {
            return Err(ApiError::new(ErrorCode::UnknownTopic, "no topic 'refused'"));
        }
        let (count, is_batch) = match payload {
            Payload::Record { .. } => (1, false),
            Payload::Batch(batch) => (batch.count, true),
        };
        let first_offset = self.next_offset;
        self.next_offset += i64::from(count);
        Ok(Run {
            key: PartitionKey(partition),
            partition,
            first_offset,
            count,
            is_batch,
        })
    }

    fn decide(&mut self) {
        let verdict = Verdict {
            good_below: i64::MAX,
            error: None,
        };
        for run in std::mem::take(&mut self.undecided) {
            self.encode(|codec, out| codec.encode_run(&run, &verdict, out));
        }
    }

    fn encode(&mut self, encode: impl FnOnce(&mut LineCodec, &mut Outbox)) {
        let mut outbox = Outbox::new();
        encode(&mut self.codec, &mut outbox);
        self.output.append(outbox.tail_mut());
        self.is_closed = self.codec.is_closing();
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

pub(crate) fn some_records() -> Records {
    let mut records = Records::new();
    let record = Record {
        timestamp: 1000,
        key: Some(b"k"),
        value: Some(b"a\tb"),
        headers: b"",
    };
    records.push(&StoredRecord {
        offset: 3,
        crc_ok: true,
        record,
    });
    let record = Record {
        timestamp: 1001,
        key: None,
        value: None,
        headers: b"",
    };
    records.push(&StoredRecord {
        offset: 4,
        crc_ok: true,
        record,
    });
    records
}

pub(crate) fn explanation() -> Explanation {
    Explanation {
        segment: 8_388_608,
        segments: 41,
        bases: (0, 8_912_896),
        index: Some(IndexStep {
            entry: 1203,
            entries: 2621,
            relative_offset: 123_700,
            position: 5_033_216,
            probes: 12,
        }),
        scanned_bytes: 3264,
        passed_over: 85,
        offset: 8_512_393,
        position: 5_036_480,
        bytes: 112,
        timestamp: 1_767_052_800_000,
        state: RecordState::Good,
        took: Duration::from_nanos(871),
    }
}

/// What the scripted broker says to anything but an append.
pub(crate) fn answer(request: &Request<'_>) -> Response {
    match request {
        Request::Read { .. } => Response::Records {
            partition: 1,
            records: some_records(),
            next_offset: 5,
            high_watermark: 9,
        },
        Request::Fetch { .. } => Response::Fetched {
            range: None,
            first_offset: 9,
            next_offset: 9,
            high_watermark: 9,
        },
        Request::Tail(TailFrom::One(..)) => Response::Tailing(Some(3)),
        Request::Tail(TailFrom::All(..)) => Response::Tailing(None),
        Request::Offsets(_) => Response::Offsets(vec![(0, 0, 9), (1, 4, 5)]),
        Request::At(..) => Response::At(None),
        Request::Explain(..) => Response::Explained {
            partition: 0,
            explanation: Box::new(explanation()),
        },
        Request::Topics => Response::Topics(vec![TopicInfo {
            name: "orders".to_owned(),
            partitions: 3,
            records: 12,
            bytes: 1234,
        }]),
        Request::Describe(_) => Response::Described {
            configs: vec![("retention.ms", "-1".to_owned(), ConfigSource::Topic)],
            partitions: vec![PartitionInfo {
                partition: 2,
                earliest: 0,
                latest: 9,
                bytes: 400,
                segments: 1,
                health: PartitionHealth::ReadOnly,
            }],
        },
        Request::Segments(_) => Response::Segments(segments()),
        Request::Stats => Response::Stats(vec![("uptime_ms", 5), ("topics", 1)]),
        Request::Delete(topic) => Response::Error(ApiError::new(
            ErrorCode::UnknownTopic,
            format!(
                "no topic '{}'\nwith two lines",
                String::from_utf8_lossy(topic)
            ),
        )),
        Request::Trim(_, offset) => Response::Trimmed {
            earliest: *offset,
            latest: 9,
        },
        Request::Consume(_) => Response::Consuming,
        Request::Committed { .. } => Response::Committed(committed()),
        Request::Groups => Response::Groups(vec![group()]),
        Request::Ack { .. }
        | Request::Commit { .. }
        | Request::Append(..)
        | Request::Stop
        | Request::Create { .. }
        | Request::Alter { .. }
        | Request::Partitions(..)
        | Request::Sync => Response::Done,
    }
}

fn committed() -> Vec<CommittedInfo> {
    vec![
        CommittedInfo {
            partition: 0,
            committed: Some(5),
            latest: 9,
            lag: 4,
            owner: Some("127.0.0.1:5000".into()),
        },
        CommittedInfo {
            partition: 1,
            committed: None,
            latest: 3,
            lag: 3,
            owner: None,
        },
    ]
}

fn group() -> GroupInfo {
    GroupInfo {
        group: b"bill\xffing"[..].into(),
        members: 2,
        topics: 1,
    }
}

fn segments() -> Vec<SegmentInfo> {
    vec![
        SegmentInfo {
            base_offset: 0,
            bytes: 10,
            records: 2,
            index_entries: 1,
            first_timestamp: Some(-3),
            last_timestamp: Some(7),
        },
        SegmentInfo {
            base_offset: 2,
            bytes: 0,
            records: 0,
            index_entries: 0,
            first_timestamp: None,
            last_timestamp: None,
        },
    ]
}

/// Sends everything at once and returns the replies.
pub(crate) fn session(input: impl AsRef<[u8]>) -> String {
    let mut peer = Peer::new();
    peer.turn(input.as_ref());
    peer.text()
}

/// The code of the one reply to one line, or OK.
pub(crate) fn code(line: &str) -> String {
    let reply = session(format!("{line}\n"));
    let mut words = reply.split([' ', '\n']);
    match words.next() {
        Some("ERR") => words.next().unwrap_or_default().to_owned(),
        other => other.unwrap_or_default().to_owned(),
    }
}

/// What the broker was asked by one line.
pub(crate) fn asked(line: &str) -> String {
    let mut peer = Peer::new();
    peer.turn(format!("{line}\n").as_bytes());
    assert_eq!(peer.asked.len(), 1, "{line}: {}", peer.text());
    peer.asked.remove(0)
}
