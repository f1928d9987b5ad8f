// heap.hpp: what a symmetric heap begins with, and what lies in it: objects of one or more slots.
#pragma once

#include <atomic>

#include "core/layout.hpp"

namespace deep_ll {

// How a sleeping rank is woken on a host. Words are the truth; this is only who sleeps and until when.
struct alignas(128) Doorbell {
    std::atomic<std::uint32_t> ring;                 // the futex
    std::atomic<std::uint32_t> sleeping;             // 0 or 1: this heap's owner sleeps
    std::atomic<std::uint64_t> wake_at;              // the arrival that must wake it
    alignas(64) std::atomic<std::uint64_t> arrived;  // publications so far, by anyone
};

struct alignas(kPage) HeapHeader {
    std::uint8_t nonce[64];  // written by the owner before the heap is handed over, compared by each peer
    Doorbell doorbell;
    std::atomic<std::uint32_t> gone;  // 1: the owner closed it, or a peer saw that its process ended. Final
};
static_assert(sizeof(HeapHeader) == kPage);
constexpr std::uint64_t kNonceBytes = sizeof(HeapHeader::nonce);

// An object with `slots` slots that take turns by generation.
struct Object {
    std::uint64_t offset;
    std::uint64_t slot_bytes;
    std::uint32_t slots;

    WORD_FN std::uint64_t slot(std::uint32_t generation) const {
        return offset + generation % slots * slot_bytes;
    }
};

// Carves objects after the header.
class HeapPlan {
   public:
    HeapPlan() { arena_.take(sizeof(HeapHeader), kPage); }

    Object take(std::uint64_t slot_bytes, std::uint32_t slots, std::uint64_t align) {
        const std::uint64_t stride = round_up(slot_bytes, align);
        return {arena_.take(stride * slots, align), stride, slots};
    }
    std::uint64_t used() const { return arena_.used(); }

   private:
    Arena arena_;
};

}  // namespace deep_ll
