// peer.hpp: one peer of a link: the message that is being filled for it, and those on their way.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "symm/message.hpp"
#include "symm/ucx/ucp.hpp"

namespace deep_ll {

struct Peer;

// A message's memory until it has left.
struct Buffer {
    Peer* peer;
    std::uint8_t bytes[kMessageBytes];
};

// NOTE [two locks]: `filling` is held to fill and send, the link's own lock for every call of UCX. Who holds
// `filling` may take the link's lock, never the other way round; handlers of UCX hold the link's.
struct Peer {
    std::atomic<bool> given_up{false};  // it took nothing for too long: what it missed cannot be made up for
    std::atomic<bool> left_out{false};  // by this rank
    const Ucp* ucp;

    // Under `filling`:
    std::mutex filling;
    Buffer* open = nullptr;
    std::optional<MessageWriter> writer;  // over `open`
    std::uint64_t next_number = 0;
    LinkStats sent{};

    // Under the link's lock:
    ucp_ep_h ep = nullptr;
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Buffer*> idle;  // of these

    bool reachable() const { return !dead_.load(std::memory_order_acquire); }
    void die(ucs_status_t why) {
        why_.store(why, std::memory_order_relaxed);
        dead_.store(true, std::memory_order_release);
    }
    // What is on its way stays.
    void free_idle() {
        std::erase_if(buffers, [&](const std::unique_ptr<Buffer>& buffer) {
            return std::find(idle.begin(), idle.end(), buffer.get()) != idle.end();
        });
        idle.clear();
    }
    // Of a dead one.
    ucs_status_t why() const { return why_.load(std::memory_order_relaxed); }

   private:
    std::atomic<bool> dead_{false};
    std::atomic<ucs_status_t> why_{UCS_OK};
};

}  // namespace deep_ll
