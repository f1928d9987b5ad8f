// What one rank process of the floor does in each operation.
#pragma once
#include <cstring>
#include <random>
#include <vector>

#include "floor_kernels/kernels.hpp"
#include "floor_work.hpp"

// One rank's part of every operation.
class Rank {
   public:
    Rank(const Work& work, int rank)
        : w(work),
          rank_(rank),
          y_(map_array<uint16_t>(work.held[rank].size() * work.shape.hidden, MAP_PRIVATE)) {
        std::minstd_rand random(100 + static_cast<unsigned>(rank));
        std::normal_distribution<float> normal;
        for (size_t i = first_token() * hidden(); i < end_token() * hidden(); ++i) {
            w.x[i] = portable::to_bf16(normal(random));
        }
        for (size_t i = 0; i < w.held[rank].size() * hidden(); ++i) {  // 0.5 to 2, both signs
            const auto bits = static_cast<uint32_t>(random());
            y_[i] = static_cast<uint16_t>(0x3f00 | (bits >> 8 & 0x80ff));
        }
    }

    template <bool kStream>
    void dispatch() {
        alignas(64) float scales[kMaxHidden / 128] = {};
        for (size_t token = first_token(); token < end_token(); ++token) {
            void* rows[kMaxTopk];
            size_t slots[kMaxTopk];
            const int num = targets(token, rows, slots);
            const uint16_t* x = w.x + token * hidden();
            if (w.shape.fp8) {
                kernels::cast_fan<kStream>(rows, num, scales, x, w.shape.hidden);
            } else {
                kernels::fan_row<kStream>(rows, num, x, w.shape.row_bytes());
            }
            for (int k = 0; k < num; ++k) {
                if (w.shape.fp8) store_scales<kStream>(slots[k], scales);
                w.sources[slots[k]] = static_cast<int32_t>(token);
            }
        }
        kernels::store_fence();
    }

    // Copies the rows into the inboxes of the tokens' ranks, then reduces what its own inbox holds. No other
    // rank is waited for: what has not arrived yet is there from the round before.
    template <bool kStream>
    void combine() {
        const uint16_t* row = y_;
        for (const Held& held : w.held[rank_]) {
            kernels::copy_row<kStream>(w.inbox_row(held.selection), row, hidden() * 2);
            row += hidden();
        }
        kernels::store_fence();
        reduce<kStream>([&](size_t selection) { return w.inbox_row(selection); });
    }

    // Reduces the rows where the experts left them.
    template <bool kStream>
    void combine_zero_copy() {
        reduce<kStream>([&](size_t selection) { return w.shared_y + w.slots[selection] * hidden(); });
    }

    // What the experts do before a zero-copy combine: write their results into the shared rows. Not timed.
    void write_shared_rows() {
        const uint16_t* row = y_;
        for (const Held& held : w.held[rank_]) {
            kernels::copy_row<false>(w.shared_y + held.slot * hidden(), row, hidden() * 2);
            row += hidden();
        }
    }

    // Whether the vector kernels did to this rank's last token what the plain ones do. Call it when all ranks
    // have been through every operation.
    bool check() const {
        const size_t token = end_token() - 1;
        return check_dispatch(token) && check_combine(token);
    }

   private:
    const Work& w;
    int rank_;
    uint16_t* y_;  // private: the results of this rank's experts, row after row

    size_t hidden() const { return w.shape.hidden; }
    size_t first_token() const { return static_cast<size_t>(rank_) * w.shape.tokens; }
    size_t end_token() const { return first_token() + w.shape.tokens; }

    int targets(size_t token, void** rows, size_t* slots) const {
        int num = 0;
        for (size_t i = token * w.shape.topk; i < (token + 1) * w.shape.topk; ++i) {
            if (w.experts[i] < 0) continue;
            slots[num] = w.slots[i];
            rows[num++] = w.rows + w.slots[i] * w.shape.row_bytes();
        }
        return num;
    }

    template <bool kStream>
    void store_scales(size_t slot, const float* scales) {
        kernels::copy_row<kStream>(w.scales + slot * w.shape.scale_bytes(), scales, w.shape.scale_bytes());
    }

    template <bool kStream, typename RowOf>
    void reduce(RowOf row_of) {
        for (size_t token = first_token(); token < end_token(); ++token) {
            const uint16_t* rows[kMaxTopk];
            float weights[kMaxTopk];
            const int num = sources(token, row_of, rows, weights);
            kernels::reduce_rows<kStream>(w.out + token * hidden(), rows, weights, num, w.shape.hidden);
        }
        kernels::store_fence();
    }

    template <typename RowOf>
    int sources(size_t token, RowOf row_of, const uint16_t** rows, float* weights) const {
        int num = 0;
        for (size_t i = token * w.shape.topk; i < (token + 1) * w.shape.topk; ++i) {
            if (w.experts[i] < 0) continue;
            rows[num] = row_of(i);
            weights[num++] = w.weights[i];
        }
        return num;
    }

    bool check_dispatch(size_t token) const {
        void* rows[kMaxTopk];
        size_t slots[kMaxTopk];
        const int num = targets(token, rows, slots);
        std::vector<uint8_t> expected(w.shape.row_bytes());
        std::vector<float> scales(kMaxHidden / 128);
        void* target = expected.data();
        const uint16_t* x = w.x + token * hidden();
        if (w.shape.fp8) {
            portable::cast_fan<false>(&target, 1, scales.data(), x, w.shape.hidden);
        } else {
            portable::copy_row<false>(target, x, expected.size());
        }
        for (int k = 0; k < num; ++k) {
            const void* stored = w.scales + slots[k] * w.shape.scale_bytes();
            if (std::memcmp(rows[k], target, expected.size()) != 0) return false;
            if (w.shape.fp8 && std::memcmp(stored, scales.data(), hidden() / 32) != 0) return false;
            if (w.sources[slots[k]] != static_cast<int32_t>(token)) return false;
        }
        return true;
    }

    bool check_combine(size_t token) const {
        const uint16_t *pulled[kMaxTopk], *pushed[kMaxTopk];
        float weights[kMaxTopk];
        const auto shared_row = [&](size_t i) { return w.shared_y + w.slots[i] * hidden(); };
        const auto inbox_row = [&](size_t i) { return w.inbox_row(i); };
        const int num = sources(token, shared_row, pulled, weights);
        sources(token, inbox_row, pushed, weights);
        std::vector<uint16_t> expected(hidden());
        portable::reduce_rows<false>(expected.data(), pulled, weights, num, w.shape.hidden);
        bool same = std::memcmp(w.out + token * hidden(), expected.data(), hidden() * 2) == 0;
        for (int k = 0; k < num; ++k) same = same && std::memcmp(pulled[k], pushed[k], hidden() * 2) == 0;
        return same;
    }
};
