-- semi- and anti-joins on the unit's key
SELECT COUNT(*) AS n FROM people WHERE person_id IN (SELECT person_id FROM visits);
SELECT COUNT(*) AS n FROM people WHERE person_id NOT IN (SELECT person_id FROM visits WHERE urgent);
SELECT COUNT(*) AS n FROM visits WHERE person_id IN (SELECT person_id FROM letters WHERE topic = 'bill');
SELECT COUNT(*) AS n FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.person_id = p.person_id AND v.cost > 250);
SELECT COUNT(*) AS n FROM people p WHERE NOT EXISTS (SELECT * FROM visits v WHERE v.person_id = p.person_id);
SELECT city, COUNT(*) AS n, AVG(age) AS a FROM people WHERE person_id NOT IN (SELECT person_id FROM letters) GROUP BY city;
SELECT COUNT(*) AS n FROM people WHERE person_id IN (SELECT person_id FROM visits) AND person_id NOT IN (SELECT person_id FROM letters) AND age > 40;
SELECT COUNT(*) AS n FROM people WHERE age > 60 OR person_id IN (SELECT person_id FROM visits WHERE kind = 'surgery');
SELECT COUNT(*) FILTER (WHERE person_id IN (SELECT person_id FROM visits)) AS n, COUNT(*) AS m FROM people;
SELECT CASE WHEN person_id IN (SELECT person_id FROM visits) THEN 'patient' ELSE 'other' END AS k, COUNT(*) AS n FROM people GROUP BY k;
SELECT AVG(CASE WHEN EXISTS (SELECT 1 FROM letters l WHERE l.person_id = p.person_id) THEN 1.0 ELSE 0.0 END) AS share FROM people p;
SELECT COUNT(*) AS n FROM people SEMI JOIN visits USING (person_id);
SELECT COUNT(*) AS n FROM people ANTI JOIN visits ON people.person_id = visits.person_id AND visits.cost > 100;
SELECT SUM(cost) AS s FROM visits WHERE person_id IN (SELECT person_id FROM people WHERE smoker AND city = 'Bern');
SELECT COUNT(*) AS n FROM people WHERE person_id IN (SELECT person_id FROM visits GROUP BY person_id HAVING COUNT(*) >= 3);
WITH heavy AS (SELECT person_id FROM visits WHERE cost >= 300) SELECT city, COUNT(*) AS n FROM people WHERE person_id IN (SELECT person_id FROM heavy) GROUP BY city;
SELECT COUNT(*) AS n FROM people WHERE person_id IN (SELECT person_id FROM visits WHERE person_id IN (SELECT person_id FROM letters));
SELECT COUNT(*) AS n FROM visits v WHERE NOT EXISTS (SELECT 1 FROM people p WHERE p.person_id = v.person_id);
SELECT COUNT(*) AS n FROM visits WHERE clinic_id IN (SELECT clinic_id FROM clinics WHERE region = 'north') OR cost > 400;
SELECT COUNT(*) AS n FROM visits v WHERE EXISTS (SELECT 1 FROM clinics c WHERE c.clinic_id = v.clinic_id AND c.beds > 100);
-- outer joins with conditions
SELECT COUNT(*) AS n, COUNT(v.cost) AS m FROM people p LEFT JOIN visits v ON p.person_id = v.person_id AND v.urgent;
SELECT p.city, COUNT(v.person_id) AS n FROM people p LEFT JOIN visits v ON p.person_id = v.person_id AND v.cost > 200 GROUP BY p.city;
SELECT COUNT(*) AS n FROM people p LEFT JOIN visits v ON p.person_id = v.person_id AND v.kind = 'surgery' WHERE v.person_id IS NULL;
SELECT COUNT(*) AS n FROM visits v RIGHT JOIN people p ON p.person_id = v.person_id AND v.cost IS NOT NULL AND v.minutes < 60;
SELECT COUNT(*) AS n, SUM(c.beds) AS b FROM visits v LEFT JOIN clinics c ON v.clinic_id = c.clinic_id AND c.region = 'south';
SELECT c.region, COUNT(v.cost) AS n FROM clinics c LEFT JOIN visits v ON c.clinic_id = v.clinic_id AND v.urgent GROUP BY c.region;
SELECT COUNT(*) AS n FROM people p LEFT JOIN visits v ON p.person_id = v.person_id WHERE v.cost > 200;
SELECT COUNT(*) AS n, COUNT(age) AS a, COUNT(cost) AS c FROM people FULL JOIN visits USING (person_id);
SELECT COUNT(DISTINCT person_id) AS n FROM people FULL OUTER JOIN visits USING (person_id);
SELECT city, COUNT(*) AS n, SUM(cost) AS s FROM people FULL JOIN visits USING (person_id) GROUP BY city;
SELECT COUNT(*) AS n FROM people p FULL JOIN visits v ON p.person_id = v.person_id WHERE p.person_id IS NULL;
SELECT COUNT(p.person_id) AS a, COUNT(l.person_id) AS b FROM people p FULL JOIN letters l ON l.person_id = p.person_id;
-- public joins, either order
SELECT clinic_id, COUNT(*) AS n FROM clinics JOIN visits USING (clinic_id) GROUP BY clinic_id;
SELECT clinic_id, COUNT(*) AS n FROM visits JOIN clinics USING (clinic_id) GROUP BY clinic_id;
SELECT region, AVG(cost) AS a FROM clinics c JOIN visits v ON c.clinic_id = v.clinic_id GROUP BY region;
SELECT region, city, COUNT(*) AS n FROM clinics JOIN visits USING (clinic_id) JOIN people USING (person_id) GROUP BY region, city;
-- ROLLUP, CUBE and GROUPING SETS
SELECT kind, urgent, COUNT(*) AS n FROM visits GROUP BY ROLLUP (kind, urgent);
SELECT city, smoker, GROUPING(city, smoker) AS grouping_both, COUNT(*) AS n, AVG(age) AS a FROM people GROUP BY CUBE (city, smoker);
SELECT city, plan, GROUPING(city) AS grouping_city, GROUPING(plan) AS grouping_plan, COUNT(*) AS n FROM people GROUP BY ROLLUP (city, plan);
SELECT kind, urgent, COUNT(*) AS n, SUM(cost) AS s FROM visits GROUP BY GROUPING SETS ((kind), (urgent), ());
SELECT kind, GROUPING(kind) AS grouping_kind, COUNT(*) AS n FROM visits GROUP BY GROUPING SETS ((kind), ()) HAVING COUNT(*) > 50 ORDER BY n DESC;
SELECT YEAR(day) AS y, kind, COUNT(*) AS n FROM visits GROUP BY ROLLUP (y, kind) ORDER BY n DESC LIMIT 5;
SELECT kind, plan, COUNT(*) AS n FROM visits JOIN people USING (person_id) GROUP BY kind, ROLLUP (plan);
SELECT city, plan, COUNT(*) AS n FROM people GROUP BY ALL;
-- shares of totals
SELECT city, COUNT(*) AS n, COUNT(*) * 1.0 / SUM(COUNT(*)) OVER () AS share FROM people GROUP BY city;
SELECT kind, SUM(cost) AS s, 100.0 * SUM(cost) / SUM(SUM(cost)) OVER () AS percent FROM visits GROUP BY kind HAVING COUNT(*) > 10;
SELECT city, plan, COUNT(*) * 1.0 / SUM(COUNT(*)) OVER (PARTITION BY city) AS share FROM people GROUP BY city, plan HAVING COUNT(*) > 0;
SELECT YEAR(day) AS y, MONTH(day) AS m, SUM(COUNT(*)) OVER (ORDER BY YEAR(day), MONTH(day)) AS so_far FROM visits GROUP BY y, m;
SELECT kind, urgent, SUM(COUNT(*)) OVER (PARTITION BY kind) AS of_kind, SUM(COUNT(*)) OVER () AS in_all FROM visits GROUP BY kind, urgent HAVING COUNT(*) > 0;
-- truth values
SELECT AVG(smoker::INT) AS a, SUM(smoker::INT) AS s FROM people;
SELECT city, AVG(CAST(smoker AS DOUBLE)) AS a FROM people GROUP BY city;
SELECT COUNT(*) AS n FROM people WHERE smoker = 1;
SELECT COUNT(*) AS n FROM visits WHERE urgent::INT = 0 AND cost > 100;
SELECT kind, AVG(urgent::INT) AS a FROM visits GROUP BY kind;
SELECT AVG((cost > 100)::INT) AS a FROM visits;
SELECT COUNT(*) AS n FROM people WHERE smoker IS NOT TRUE;
SELECT COUNT(*) AS n FROM people WHERE smoker IS DISTINCT FROM TRUE;
-- dates
SELECT COUNT(*) AS n FROM visits WHERE day >= DATE '2020-06-30' - INTERVAL 30 DAY;
SELECT COUNT(*) AS n FROM visits WHERE day + INTERVAL 10 DAY > DATE '2020-03-01';
SELECT COUNT(*) AS n FROM visits WHERE day BETWEEN DATE '2019-12-31' - INTERVAL '3 months' AND DATE '2019-12-31';
SELECT COUNT(*) AS n FROM people JOIN visits USING (person_id) WHERE born + INTERVAL 30 YEAR <= day;
SELECT COUNT(*) AS n FROM visits WHERE arrived < TIMESTAMP '2019-02-01 12:00:00' + INTERVAL 36 HOUR;
SELECT AVG(day - DATE '2019-01-01') AS a FROM visits;
SELECT MIN(day - DATE '2019-01-01') AS a, MAX(DATE_DIFF('day', DATE '2019-01-01', day)) AS b FROM visits WHERE day < DATE '2020-03-01';
SELECT WEEK(day) AS w, COUNT(*) AS n FROM visits GROUP BY w;
SELECT EXTRACT(WEEK FROM day) AS w, COUNT(*) AS n FROM visits WHERE YEAR(day) = 2020 GROUP BY w;
SELECT ISODOW(day) AS d, COUNT(*) AS n FROM visits GROUP BY d;
SELECT DATE_PART('isodow', arrived) AS d, AVG(minutes) AS a FROM visits GROUP BY d;
SELECT DATE_TRUNC('week', day) AS w, COUNT(*) AS n FROM visits GROUP BY w;
SELECT DATE_TRUNC('month', day + INTERVAL 15 DAY) AS m, COUNT(*) AS n FROM visits GROUP BY m;
SELECT AVG(DATE_DIFF('year', born, DATE '2020-01-01')) AS a FROM people;
SELECT YEAR(born) // 10 * 10 AS decade, COUNT(*) AS n FROM people GROUP BY decade;
-- texts
SELECT UPPER(SUBSTR(city, 1, 2)) AS c, COUNT(*) AS n FROM people GROUP BY c;
SELECT TRIM(plan) AS p, COUNT(*) AS n FROM people GROUP BY p;
SELECT LENGTH(city) AS l, COUNT(*) AS n FROM people GROUP BY l;
SELECT AVG(LENGTH(kind)) AS a FROM visits;
SELECT REPLACE(plan, '-', '_') AS p, COUNT(*) AS n FROM people GROUP BY p;
SELECT city || ', CH' AS c, COUNT(*) AS n FROM people GROUP BY c;
SELECT CONCAT(kind, '/', urgent) AS c, COUNT(*) AS n FROM visits GROUP BY c;
SELECT COUNT(*) AS n FROM people WHERE city LIKE '_er%';
SELECT COUNT(*) AS n FROM people WHERE city ILIKE 'z%';
SELECT RIGHT(city, 2) AS c, COUNT(*) AS n FROM people GROUP BY c;
SELECT REVERSE(city) AS c, COUNT(*) AS n FROM people GROUP BY c;
SELECT COUNT(*) AS n FROM people WHERE LEFT(city, 1) IN ('Z', 'B');
-- the mean of people's means
SELECT AVG(m) AS a FROM (SELECT person_id, AVG(cost) AS m FROM visits GROUP BY person_id) t;
SELECT MEDIAN(m) AS a FROM (SELECT person_id, AVG(minutes) AS m FROM visits GROUP BY person_id) t;
SELECT city, AVG(m) AS a FROM people JOIN (SELECT person_id, AVG(minutes) AS m FROM visits GROUP BY person_id) t USING (person_id) GROUP BY city;
SELECT AVG(u) AS a FROM (SELECT person_id, AVG(urgent::INT) AS u FROM visits GROUP BY person_id) t;
SELECT COUNT(*) AS n FROM (SELECT person_id, AVG(cost) AS m FROM visits GROUP BY person_id) t WHERE m > 250;
SELECT AVG(s) AS a FROM (SELECT person_id, AVG(cost) FILTER (WHERE urgent) AS s FROM visits GROUP BY person_id) t;
-- dates by their order (compared within the width of a bin)
SELECT MIN(day) AS a, MAX(day) AS b FROM visits;
SELECT MEDIAN(day) AS a, COUNT(*) AS n FROM visits;
SELECT kind, MEDIAN(day) AS a FROM visits GROUP BY kind HAVING COUNT(*) > 20;
SELECT MAX(arrived) AS a FROM visits WHERE urgent;
SELECT MIN(arrived) AS a, MEDIAN(arrived) AS b FROM visits;
SELECT QUANTILE_DISC(born, 0.5) AS a FROM people;
SELECT MAX(born) AS a FROM people WHERE smoker;
SELECT MEDIAN(f) AS a FROM (SELECT person_id, MIN(day) AS f FROM visits GROUP BY person_id) t;
SELECT MIN(DATE_TRUNC('month', day)) AS a FROM visits;
SELECT MEDIAN(day + INTERVAL 7 DAY) AS a FROM visits;
-- histograms
SELECT FLOOR(age / 5) * 5 AS bin, COUNT(*) AS n FROM people GROUP BY bin;
SELECT age - age % 5 AS bin, COUNT(*) AS n FROM people GROUP BY bin;
SELECT FLOOR(income / 10000) * 10000 AS bin, COUNT(*) AS n FROM people GROUP BY bin;
SELECT FLOOR(minutes / 15) * 15 + 7.5 AS middle, COUNT(*) AS n FROM visits GROUP BY middle;
SELECT ROUND(cost / 50) * 50 AS bin, COUNT(*) AS n FROM visits GROUP BY bin;
SELECT ROUND(income, -4) AS bin, COUNT(*) AS n FROM people GROUP BY bin;
SELECT age // 10 AS decade, COUNT(*) AS n FROM people GROUP BY decade;
SELECT CASE WHEN cost < 100 THEN 0 WHEN cost < 300 THEN 100 ELSE 300 END AS bin, COUNT(*) AS n FROM visits GROUP BY bin;
SELECT WIDTH_BUCKET(minutes, 0, 120, 6) AS bin, COUNT(*) AS n FROM visits GROUP BY bin;
SELECT WIDTH_BUCKET(cost, 100, 400, 5) AS bin, SUM(minutes) AS s FROM visits WHERE cost IS NOT NULL GROUP BY bin;
SELECT BUCKET(cost, 50, 100, 300) AS bin, COUNT(*) AS n FROM visits WHERE cost IS NOT NULL GROUP BY bin;
-- quotients
SELECT AVG(income / age) AS a FROM people;
SELECT SUM(income / age) AS s FROM people WHERE age > 30;
SELECT AVG(cost * 1.0 / minutes) AS a FROM visits WHERE minutes > 0;
SELECT SUM(cost / (minutes + 1)) AS s FROM visits;
SELECT AVG(cost / NULLIF(minutes, 0)) AS a FROM visits;
-- regressions
SELECT REGR_SLOPE(cost, minutes) AS b, REGR_INTERCEPT(cost, minutes) AS a FROM visits;
SELECT REGR_R2(income, age) AS r FROM people;
SELECT REGR_COUNT(cost, minutes) AS n, REGR_AVGX(cost, minutes) AS x, REGR_AVGY(cost, minutes) AS y FROM visits;
SELECT kind, REGR_SLOPE(cost, minutes) AS b FROM visits GROUP BY kind HAVING COUNT(*) > 10;
SELECT REGR_SXX(income, age) AS xx, REGR_SXY(income, age) AS xy, REGR_SYY(income, age) AS yy FROM people;
