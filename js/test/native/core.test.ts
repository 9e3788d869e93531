// SPDX-License-Identifier: Apache-2.0
// The native core, by the addon. Needs js/platform, which `make addon` fills.

import { testCore } from "../core_suite.js";

testCore("native");
