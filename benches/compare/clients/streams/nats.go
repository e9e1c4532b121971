package main

import (
	"context"
	"encoding/binary"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsLatency publishes asynchronously and reads with an ordered consumer, each on a connection of its own.
func natsLatency(addr, name string, load openLoop, payload []byte) {
	connect := func() jetstream.JetStream {
		connection, err := nats.Connect("nats://" + addr)
		check(err)
		js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(100_000))
		check(err)
		return js
	}
	writer, reader := connect(), connect()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := writer.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage})
	check(err)
	_ = stream
	consumer, err := reader.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{})
	check(err)
	got := make(latencies, 0, load.records)
	done := make(chan struct{})
	consuming, err := consumer.Consume(func(message jetstream.Msg) {
		if got.arrived(int64(binary.LittleEndian.Uint64(message.Data())), load) {
			close(done)
		}
	})
	check(err)
	load.run(func(intended int64) {
		binary.LittleEndian.PutUint64(payload, uint64(intended))
		_, err := writer.PublishAsync(name, payload)
		check(err)
	})
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		log.Fatalf("%d of %d records did not come", load.records-len(got), load.records)
	}
	consuming.Stop()
	got.print()
	check(writer.DeleteStream(context.Background(), name))
}
