#pragma once

#include <nanobind/nanobind.h>

void bind_run(nanobind::module_& m);
