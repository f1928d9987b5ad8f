// One flat memory for all GPUs and the host; every allocation has a name, bounds and a gap behind it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "words.hpp"

namespace ptx {

inline constexpr u64 kBase = u64{1} << 32;  // the generic address of offset 0
// Where shared addresses start: sm_90 reserves the first KiB of a block, and a null pointer stays invalid.
inline constexpr u64 kSharedStart = 1024;

struct Allocation {
    u64 begin, end;
    std::string name;
    int gpu;  // -1: the host
    bool shared = false;
    const void* block = nullptr;  // of shared memory: the block that owns it now
};

class Memory {
   public:
    explicit Memory(u64 bytes) : bytes_(new u8[bytes]()), size_(bytes), granules_(bytes / kGranule + 1, 0) {
        allocations_.emplace_back();
    }

    // Returns the number of the allocation; 0: no room.
    u32 allocate(u64 bytes, u64 align, const std::string& name, int gpu);
    void give_back(u32 allocation) { free_[capacity(allocation)].push_back(allocation); }
    u32 take_again(u64 bytes, const std::string& name, int gpu);

    const Allocation& operator[](u32 allocation) const { return allocations_[allocation]; }
    Allocation& operator[](u32 allocation) { return allocations_[allocation]; }
    // The allocation around an offset; 0: none.
    u32 find(u64 offset) const {
        if (offset >= size_) return 0;
        const u32 found = granules_[offset / kGranule];
        return found != 0 && offset >= allocations_[found].begin && offset < allocations_[found].end ? found
                                                                                                     : 0;
    }
    std::string name(u64 offset) const;
    // The last allocation that begins before an offset; 0: none.
    u32 before(u64 offset) const;

    u8* data(u64 offset) { return bytes_.get() + offset; }
    u64 size() const { return size_; }

   private:
    static constexpr u64 kGranule = 256;
    u64 capacity(u32 allocation) const {
        return allocations_[allocation].end - allocations_[allocation].begin;
    }

    std::unique_ptr<u8[]> bytes_;
    u64 size_, top_ = 4096;
    std::vector<u32> granules_;
    std::vector<Allocation> allocations_;
    std::map<u64, std::vector<u32>> free_;
};

}  // namespace ptx
