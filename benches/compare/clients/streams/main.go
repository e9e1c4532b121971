// Load on NATS JetStream and on Redis where their own tools have none: end-to-end latency at a fixed rate, and XREAD.
//
//	streams nats-latency ADDR STREAM RATE SECONDS SIZE
//	streams redis-latency ADDR KEY RATE SECONDS SIZE
//	streams redis-consume ADDR KEYS RECORDS      (KEYS: one connection each, separated by commas)
//
// Prints one JSON line.
package main

import (
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Both sides warm up for so long before any record is counted.
const warmUpSeconds = 3

func main() {
	log.SetFlags(0)
	log.SetPrefix("streams: ")
	arguments := os.Args[1:]
	if len(arguments) == 4 && arguments[0] == "redis-consume" {
		redisConsume(arguments[1], strings.Split(arguments[2], ","), number(arguments[3]))
		return
	}
	if len(arguments) != 6 {
		log.Fatal("usage: see the head of main.go")
	}
	addr, name := arguments[1], arguments[2]
	load := openLoop{rate: number(arguments[3]), records: number(arguments[3]) * number(arguments[4])}
	payload := make([]byte, number(arguments[5]))
	switch arguments[0] {
	case "nats-latency":
		natsLatency(addr, name, load, payload)
	case "redis-latency":
		redisLatency(addr, name, load, payload)
	default:
		log.Fatalf("%q is no workload", arguments[0])
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// openLoop sends at its rate whatever comes back; a latency counts from the time at which a record was to be sent.
type openLoop struct{ rate, records int }

// run calls send with the intended time of each record, 0 for those that warm up.
func (l openLoop) run(send func(intended int64)) {
	begin, warmUp := monotonic(), warmUpSeconds*l.rate
	for i := range warmUp + l.records {
		due := begin + int64(i)*int64(time.Second)/int64(l.rate)
		sleepUntil(due)
		if i < warmUp {
			send(0)
		} else {
			send(due)
		}
	}
}

var start = time.Now()

// Nanoseconds, never 0.
func monotonic() int64 { return int64(time.Since(start)) + 1 }

// The runtime's own timers round up to a millisecond when nothing else runs; the kernel's do not.
func sleepUntil(due int64) {
	for {
		left := due - monotonic()
		if left <= 0 {
			return
		}
		span := syscall.NsecToTimespec(left)
		_ = syscall.Nanosleep(&span, nil)
	}
}

// latencies takes down what arrives.
type latencies []int64

// arrived returns whether it was the last one.
func (l *latencies) arrived(intended int64, load openLoop) bool {
	if intended != 0 {
		*l = append(*l, monotonic()-intended)
	}
	return len(*l) == load.records
}

func (l latencies) print() {
	slices.Sort(l)
	us := func(q float64) float64 { return float64(l[int(q*float64(len(l)-1))]) / 1e3 }
	fmt.Printf("{\"records\": %d, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f}\n",
		len(l), us(0.5), us(0.99), us(0.999), us(1))
}
