// fail.hpp: the way out of a test that found something wrong.
#pragma once

// Says what is wrong and ends the program with status 1.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
