// A hostile network between the GPUs: messages land late, in pieces and in any order but what NVSHMEM's
// documentation promises: the signal that a message ends with after its bytes; after a fence of a queue, what
// goes into that queue after what the fence's caller knew to be there.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "clocks.hpp"

namespace ptx {

// From one GPU to another, by a queue; kAnyQueue: by one of NVSHMEM's own, which promise nothing.
struct Route {
    u32 gpu, peer;
    i64 queue;
    bool operator==(const Route&) const = default;
};
inline constexpr i64 kAnyQueue = -1;

struct Message {
    Route route;
    u64 to, from;  // offsets
    u32 bytes;     // 0: only a signal
    u64 word;      // offset of what `value` is added to at the end, if `signals`
    u64 value;
    bool signals;
    u32 text;
    // Who sent it, and what that lane knew.
    u32 issuer, issue_time, issuer_sealed;
    ClockRef known;

    u64 number = 0;
    std::vector<u64> after;  // numbers of messages that land before
    u64 not_before = 0;
    u32 agent = 0;  // a thread that stands for it; 0: it has not begun to land
    u32 read_time = 0, write_time = 0;
    u32 read = 0, written = 0;
    std::vector<u8> data;
};

struct QueueFence {
    Route route;
    u32 thread, time;
    std::vector<u64> covered;  // numbers
};

struct Network {
    std::vector<u64> heaps;  // offset of each GPU's symmetric memory; empty: there is no network
    u64 bytes = 0;
    i64 first_queue = 0;
    u32 num_queues = 0;

    // What became of each message of this run, by its number.
    struct Past {
        Route route;
        u32 issuer, issue_time, agent, write_time;
        bool landed;
    };
    std::vector<Past> past;
    std::vector<Message> wire;
    std::vector<QueueFence> fences;
    std::unordered_map<u64, ClockRef> arrived;  // by word: what is known to who looks at it

    void begin_run() {
        past.clear();
        wire.clear();
        fences.clear();
        arrived.clear();
    }
};

}  // namespace ptx
