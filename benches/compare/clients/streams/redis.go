package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"sync"
	"time"
)

// Entries of one XREAD at most.
const readCount = 5000

// redisConn speaks RESP with nothing in between: no client library is faster.
type redisConn struct {
	net.Conn
	in *bufio.Reader
}

func redisConnect(addr string) redisConn {
	connection, err := net.Dial("tcp", addr)
	check(err)
	return redisConn{connection, bufio.NewReaderSize(connection, 1<<20)}
}

func (c redisConn) send(arguments ...[]byte) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "*%d\r\n", len(arguments))
	for _, argument := range arguments {
		fmt.Fprintf(&out, "$%d\r\n", len(argument))
		out.Write(argument)
		out.WriteString("\r\n")
	}
	_, err := c.Write(out.Bytes())
	check(err)
}

// head reads a line such as `*3` or `$10` and returns its kind and number (-1: null).
func (c redisConn) head() (byte, int) {
	line, err := c.in.ReadSlice('\n')
	check(err)
	if line[0] == '-' {
		log.Fatalf("redis: %s", line)
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		n = 0
	}
	return line[0], n
}

// text reads a bulk string; it is good until the next read.
func (c redisConn) text(into []byte) []byte {
	_, n := c.head()
	into = append(into[:0], make([]byte, n)...)
	_, err := io.ReadFull(c.in, into)
	check(err)
	_, err = c.in.Discard(2)
	check(err)
	return into
}

// entries reads the reply to an XREAD of one key and calls each with the value of every entry; returns the last id.
func (c redisConn) entries(last []byte, each func(value []byte)) ([]byte, int) {
	if _, keys := c.head(); keys < 1 {
		return last, 0
	}
	c.head()
	c.text(nil)
	_, count := c.head()
	var field, value []byte
	for range count {
		c.head()
		last = c.text(last)
		_, fields := c.head()
		for range fields / 2 {
			field = c.text(field)
			value = c.text(value)
			each(value)
		}
	}
	return last, count
}

func redisConsume(addr string, keys []string, records int) {
	var all sync.WaitGroup
	counts := make([]int, len(keys))
	began := time.Now()
	for i, key := range keys {
		all.Go(func() {
			c := redisConnect(addr)
			last := []byte("0")
			for {
				c.send([]byte("XREAD"), []byte("COUNT"), []byte(strconv.Itoa(readCount)), []byte("STREAMS"), []byte(key), last)
				var n int
				last, n = c.entries(last, func([]byte) {})
				counts[i] += n
				if n == 0 {
					return
				}
			}
		})
	}
	all.Wait()
	seconds := time.Since(began).Seconds()
	total := 0
	for _, count := range counts {
		total += count
	}
	if total != records {
		log.Fatalf("%d records came instead of %d", total, records)
	}
	fmt.Printf("{\"records\": %d, \"seconds\": %.6f}\n", total, seconds)
}

// redisLatency sends XADD without waiting and reads with XREAD BLOCK, each on a connection of its own.
func redisLatency(addr, key string, load openLoop, payload []byte) {
	writer, reader := redisConnect(addr), redisConnect(addr)
	go func() { _, _ = io.Copy(io.Discard, writer.Conn) }()
	done := make(chan latencies)
	go func() {
		got := make(latencies, 0, load.records)
		last := []byte("0")
		for len(got) < load.records {
			reader.send([]byte("XREAD"), []byte("BLOCK"), []byte("30000"), []byte("STREAMS"), []byte(key), last)
			var n int
			last, n = reader.entries(last, func(value []byte) {
				got.arrived(int64(binary.LittleEndian.Uint64(value)), load)
			})
			if n == 0 {
				log.Fatalf("%d of %d records did not come", load.records-len(got), load.records)
			}
		}
		done <- got
	}()
	load.run(func(intended int64) {
		binary.LittleEndian.PutUint64(payload, uint64(intended))
		writer.send([]byte("XADD"), []byte(key), []byte("*"), []byte("v"), payload)
	})
	got := <-done
	got.print()
	writer.send([]byte("DEL"), []byte(key))
}
