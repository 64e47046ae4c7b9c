-- not a question
DROP TABLE users;
DELETE FROM users;
UPDATE users SET age = 30;
INSERT INTO users VALUES (1);
CREATE TABLE t AS SELECT COUNT(*) FROM users;
CREATE VIEW v AS SELECT COUNT(*) FROM users;
ALTER TABLE users ADD COLUMN x INT;
TRUNCATE TABLE users;
COPY users TO 'out.csv';
ATTACH 'x.db';
PRAGMA table_info('users');
SET threads = 1;
EXPLAIN SELECT COUNT(*) FROM users;
DESCRIBE users;
SHOW TABLES;
SELECT 1;
SELECT 1 + 1;
SELECT COUNT(*) FROM users; SELECT COUNT(*) FROM users;
SELECT;
SELEC COUNT(*) FROM users;
SELECT COUNT(* FROM users;
SELECT COUNT(*) FROM users WHERE;
SELECT COUNT(*) FROM;
VALUES (1, 2);
CALL f();
-- rows of people
SELECT * FROM users;
SELECT user_id FROM users;
SELECT age FROM users WHERE age > 60;
SELECT age, COUNT(*) FROM users;
SELECT country, age, COUNT(*) FROM users GROUP BY country;
SELECT DISTINCT country FROM users;
SELECT DISTINCT country, COUNT(*) FROM users GROUP BY country;
SELECT country FROM users GROUP BY country;
SELECT users.* FROM users;
SELECT age + 1 FROM users;
SELECT * FROM users LIMIT 10;
SELECT * FROM actions JOIN users USING (user_id);
SELECT user_id, COUNT(*) FROM actions GROUP BY user_id;
SELECT COUNT(*) FROM actions GROUP BY user_id;
-- unknown names
SELECT COUNT(*) FROM people;
SELECT COUNT(*) FROM main.users;
SELECT COUNT(*) FROM db.main.users;
SELECT COUNT(*) FROM 'users.parquet';
SELECT COUNT(*) FROM read_parquet('users.parquet');
SELECT COUNT(*) FROM read_csv('/etc/passwd');
SELECT COUNT(*) FROM information_schema.tables;
SELECT COUNT(*) FROM generate_series(1, 10);
SELECT AVG(agee) FROM users;
SELECT AVG(users.price) FROM users;
SELECT COUNT(*) FROM users WHERE u.age > 3;
SELECT COUNT(*) FROM users GROUP BY region;
SELECT COUNT(*) FROM users ORDER BY nothing;
SELECT COUNT(*) FROM users HAVING nothing > 3;
SELECT COUNT(*) FROM actions JOIN users USING (id);
SELECT COUNT(*) FROM users JOIN users ON user_id = user_id;
SELECT user_id, COUNT(*) FROM actions a JOIN users b ON a.user_id = b.user_id GROUP BY user_id;
SELECT COUNT(*) FROM users GROUP BY 5;
SELECT country, COUNT(*) FROM users GROUP BY country ORDER BY 7;
WITH a AS (SELECT * FROM b) SELECT COUNT(*) FROM a;
-- only public or constant
SELECT COUNT(*) FROM urls;
SELECT AVG(shares) FROM urls GROUP BY topic;
SELECT COUNT(*) FROM urls a JOIN urls b ON a.url_id = b.url_id;
SELECT * FROM urls;
-- windows and order among people's rows
SELECT ROW_NUMBER() OVER (ORDER BY age) FROM users;
SELECT RANK() OVER (PARTITION BY country ORDER BY age), COUNT(*) FROM users GROUP BY country;
SELECT SUM(age) OVER () FROM users;
SELECT COUNT(*) OVER (PARTITION BY country) FROM users;
SELECT AVG(age - LAG(age) OVER (ORDER BY joined)) FROM users;
SELECT COUNT(*) FROM users QUALIFY ROW_NUMBER() OVER (ORDER BY age) < 3;
SELECT COUNT(*) FROM (SELECT * FROM users LIMIT 10) t;
SELECT COUNT(*) FROM (SELECT * FROM users ORDER BY age) t;
SELECT COUNT(*) FROM (SELECT * FROM users ORDER BY age LIMIT 3) t;
SELECT AVG(age) FROM (SELECT age FROM users ORDER BY salary DESC LIMIT 1) t;
SELECT COUNT(*) FROM (SELECT * FROM users OFFSET 5) t;
SELECT COUNT(*) FROM (SELECT DISTINCT ON (country) * FROM users ORDER BY country, age) t;
WITH top AS (SELECT * FROM users ORDER BY age LIMIT 5) SELECT COUNT(*) FROM top;
SELECT COUNT(*) FROM users TABLESAMPLE 10 PERCENT;
SELECT COUNT(*) FROM users USING SAMPLE 10;
SELECT COUNT(*) FROM users WHERE RANDOM() < 0.5;
-- text
SELECT COUNT(*) FROM users WHERE regexp_matches(country, 'D.*');
SELECT COUNT(*) FROM users WHERE country ~ 'D.*';
SELECT COUNT(*) FROM users WHERE country SIMILAR TO 'D%';
SELECT COUNT(*) FROM users WHERE country LIKE gender;
SELECT COUNT(*) FROM users WHERE REPEAT(country, 1000000) = 'x';
SELECT LPAD(country, 1000000000, 'x'), COUNT(*) FROM users GROUP BY 1;
SELECT COUNT(*) FROM users WHERE regexp_extract(country, '(a+)+$') = '';
SELECT MD5(country), COUNT(*) FROM users GROUP BY 1;
SELECT COUNT(*) FROM users WHERE HASH(user_id) = 5;
SELECT COUNT(*) FROM users WHERE LEVENSHTEIN(country, 'DE') < 2;
-- casts and odd functions
SELECT CAST(age AS VARCHAR), COUNT(*) FROM users GROUP BY 1;
SELECT COUNT(*) FROM users WHERE country::INT = 5 AND CAST(age AS BLOB) = 'x';
SELECT SUM(CAST(age AS BLOB)) FROM users;
SELECT COUNT(*) FROM users WHERE SIN(age) > 0;
SELECT AVG(TAN(age)) FROM users;
SELECT SUM(FACTORIAL(age)) FROM users;
SELECT SUM(POWER(age, salary)) FROM users;
SELECT AVG(GAMMA(age)) FROM users;
SELECT COUNT(*) FROM users WHERE age & 1 = 1;
SELECT COUNT(*) FROM users WHERE age << 2 > 100;
SELECT COUNT(*) FROM users WHERE ~age < 0;
SELECT COUNT(*) FROM users WHERE age = ?;
SELECT COUNT(*) FROM users WHERE age = $1;
SELECT COUNT(*) FROM users WHERE age = :limit;
SELECT COUNT(*) FROM users WHERE error('stop') = 1;
SELECT COUNT(*) FROM users WHERE pg_sleep(10) IS NULL;
SELECT COUNT(*) FROM users WHERE current_user = 'x';
SELECT COUNT(*) FROM users WHERE getenv('HOME') = '/';
SELECT SUM(ROUND(age, salary)) FROM users;
SELECT SUM(ROUND(age, 50)) FROM users;
SELECT SUM(CLAMP(age, 30, 20)) FROM users;
SELECT SUM(CLAMP(age, 0, salary)) FROM users;
SELECT SUM(WIDTH_BUCKET(age, 0, 100, 100000)) FROM users;
SELECT COUNT(*) FROM users WHERE age IN (salary, 3);
SELECT COUNT(*) FROM users WHERE age IN (30, NULL);
SELECT COUNT(*) FROM users WHERE age = ANY([1, 2, 3]);
SELECT COUNT(*) FROM users WHERE list_contains([1, 2], age);
SELECT COUNT(*) FROM users WHERE {'a': age}.a = 3;
SELECT COUNT(*) FROM users WHERE [age, 2][1] = 3;
SELECT SUM(list_sum(list_transform([age], x -> x + 1))) FROM users;
SELECT COUNT(*) FROM users WHERE country->>'$.a' = 'x';
-- time
SELECT COUNT(*) FROM users WHERE joined < CURRENT_DATE;
SELECT COUNT(*) FROM users WHERE joined < NOW();
SELECT COUNT(*) FROM users WHERE joined < DATE '2018-13-01';
SELECT COUNT(*) FROM users WHERE joined < DATE 'yesterday';
SELECT EXTRACT(EPOCH FROM joined), COUNT(*) FROM users GROUP BY 1;
SELECT EXTRACT(CENTURY FROM joined), COUNT(*) FROM users GROUP BY 1;
SELECT DATE_TRUNC('decade', joined), COUNT(*) FROM users GROUP BY 1;
SELECT STRFTIME(joined, '%Y'), COUNT(*) FROM users GROUP BY 1;
SELECT COUNT(*) FROM users WHERE AGE(joined) > INTERVAL 3 YEAR;
-- joins
SELECT COUNT(*) FROM users, actions;
SELECT COUNT(*) FROM users CROSS JOIN actions;
SELECT COUNT(*) FROM users JOIN actions ON users.age > actions.seconds;
SELECT COUNT(*) FROM users NATURAL JOIN actions;
SELECT COUNT(*) FROM users ASOF JOIN actions ON users.user_id = actions.user_id AND users.joined >= actions.moment;
SELECT COUNT(*) FROM users POSITIONAL JOIN actions;
SELECT COUNT(*) FROM users a JOIN users b ON a.age = b.age;
SELECT COUNT(*) FROM users a LEFT JOIN users b ON a.age = b.age;
SELECT COUNT(*) FROM users, LATERAL (SELECT * FROM actions WHERE actions.user_id = users.user_id) t;
SELECT COUNT(*) FROM urls LEFT JOIN users ON urls.shares > users.age;
-- subqueries in expressions
SELECT COUNT(*) FROM users WHERE age > (SELECT AVG(age) FROM users);
SELECT (SELECT COUNT(*) FROM users) / (SELECT COUNT(*) FROM actions);
SELECT COUNT(*), (SELECT MAX(age) FROM users) FROM users;
SELECT COUNT(*) FROM actions WHERE url_id IN (SELECT shares FROM urls);
SELECT COUNT(*) FROM actions WHERE url_id + 1 IN (SELECT url_id FROM urls);
SELECT COUNT(*) FROM users WHERE age > ALL (SELECT seconds FROM actions);
SELECT COUNT(*) FROM (SELECT COUNT(*) AS n FROM users) t;
SELECT AVG(n) FROM (SELECT STDDEV(price) AS n FROM actions GROUP BY user_id) t;
SELECT COUNT(*) FROM (SELECT age, age FROM users) t;
SELECT COUNT(*) FROM (SELECT *, COUNT(*) FROM users GROUP BY country) t;
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r;
-- set operations
SELECT COUNT(*) FROM users UNION ALL SELECT COUNT(*) FROM actions;
SELECT COUNT(*) FROM (SELECT user_id FROM users EXCEPT SELECT user_id FROM actions) t;
SELECT COUNT(*) FROM (SELECT user_id FROM users INTERSECT SELECT user_id FROM actions) t;
SELECT COUNT(*) FROM (SELECT user_id, age FROM users UNION ALL SELECT user_id FROM actions) t;
SELECT COUNT(*) FROM (SELECT url_id FROM actions UNION ALL SELECT url_id FROM urls) t;
-- aggregates
SELECT ARRAY_AGG(age) FROM users;
SELECT STRING_AGG(country, ',') FROM users;
SELECT LIST(age) FROM users;
SELECT FIRST(age) FROM users;
SELECT ANY_VALUE(age) FROM users;
SELECT ARG_MAX(country, age) FROM users;
SELECT MODE(country) FROM users;
SELECT APPROX_COUNT_DISTINCT(user_id) FROM actions;
SELECT BOOL_AND(vip) FROM users;
SELECT BOOL_OR(vip) FROM users;
SELECT SKEWNESS(age) FROM users;
SELECT KURTOSIS(age) FROM users;
SELECT ENTROPY(age) FROM users;
SELECT HISTOGRAM(age) FROM users;
SELECT PRODUCT(age) FROM users;
SELECT BIT_XOR(age) FROM users;
SELECT SUM(DISTINCT age) FROM users;
SELECT AVG(DISTINCT age) FROM users;
SELECT SUM(AVG(age)) FROM users;
SELECT COUNT(*) FROM users WHERE COUNT(*) > 3;
SELECT COUNT(*) FILTER (WHERE AVG(age) > 3) FROM users;
SELECT COUNT(*) FROM users GROUP BY COUNT(*);
SELECT QUANTILE_CONT(age, 1.5) FROM users;
SELECT QUANTILE_CONT(age, salary) FROM users;
SELECT SUM(country) FROM users;
SELECT AVG(user_id) FROM users;
SELECT MAX(user_id) FROM users;
SELECT MEDIAN(country) FROM users;
SELECT SUM(joined) FROM users;
SELECT CORR(age, country) FROM users;
SELECT UPPER(COUNT(*)) FROM users;
SELECT DATEDIFF('day', MIN(moment), MAX(moment)) FROM actions;
SELECT SIN(AVG(age)) FROM users;
SELECT COUNT(*) FROM users LIMIT 3.5;
SELECT country, COUNT(*) FROM users GROUP BY country LIMIT COUNT(*);
SELECT * FROM (PIVOT users ON country USING COUNT(*)) t;
SELECT salary, joined, COUNT(*) FROM users GROUP BY salary, joined;
SELECT moment, COUNT(*) FROM actions GROUP BY moment;
-- types
SELECT COUNT(*) FROM users WHERE country > 5;
SELECT COUNT(*) FROM users WHERE age = 'thirty';
SELECT COUNT(*) FROM users WHERE user_id > 5;
SELECT COUNT(*) FROM users WHERE user_id + 1 = 6;
SELECT COUNT(*) FROM users WHERE age;
SELECT SUM(age + country) FROM users;
SELECT COUNT(*) FROM users WHERE vip + 1 = 2;
SELECT COUNT(*) FROM users WHERE country AND vip;
SELECT COUNT(*) FROM users WHERE joined = 5;
SELECT SUM(SQRT(country)) FROM users;
-- options
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilonn=1) COUNT(*) FROM users;
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon) COUNT(*) FROM users;
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(unit=household) COUNT(*) FROM users;
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(privacy_unit_column=age) COUNT(*) FROM users;
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(unit=action) COUNT(*) FROM users;
SELECT SUM(LOG(age, 2)) FROM users;
-- what newcomers wrote
SELECT COUNT(*) FROM users WHERE age > (SELECT AVG(age) FROM users)
SELECT COUNT(*) / (SELECT COUNT(*) FROM users) FROM users WHERE vip
SELECT COUNT(*) FROM users WHERE salary < 1e308
SELECT COUNT(*) FROM users WHERE salary < 1e30
SELECT BUCKET(age), COUNT(*) FROM users GROUP BY 1
SELECT BUCKET(age, 30, 20), COUNT(*) FROM users GROUP BY 1
SELECT SUM(NULL) FROM users
SELECT COUNT(*) FROM users WHERE vip = 'yes'
SELECT COUNT(*) AS n FROM users LIMIT 0
SELECT country, COUNT(*) FROM users GROUP BY 1 LIMIT 0 OFFSET 2
SELECT MODE() WITHIN GROUP (ORDER BY age) FROM users
SELECT MEDIAN(age) WITHIN GROUP (ORDER BY age) FROM users
SELECT STDDEV(DISTINCT age) FROM users
SELECT TO_CHAR(joined, 'YYYY'), COUNT(*) FROM users GROUP BY 1
SELECT STRFTIME(joined, '%Y'), COUNT(*) FROM users GROUP BY 1
SELECT TRUNC(age, 1), COUNT(*) FROM users GROUP BY 1
SELECT COUNT(*) FROM users; CALL foo()
SELECT mean(age) FROM users
SELECT k, COUNT(*) FROM (SELECT user_id, COUNT(*) AS k FROM actions GROUP BY user_id) t GROUP BY k
